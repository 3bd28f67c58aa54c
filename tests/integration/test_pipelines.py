"""Pipelines within this process against the serial run: models, schedules, numbers of stages, who shards a stage."""

import contextlib
import dataclasses
import functools
import itertools
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import alpa
import numpy as np
import pytest
from alpa import AutoLayerOption, AutoStageOption, UniformStageOption
from alpa.pipeline_parallel.stage_construction import get_last_dp_result

from alpa_cfp import CFPOption, CFPPipeshardParallel
from alpa_cfp.apply.annotate import annotate
from alpa_cfp.database import ProfileDatabase
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.module.stage_programs import BoundaryShardings, PhaseCost
from alpa_cfp.spmd.module.stages import slice_stages
from alpa_cfp.spmd.propagation import propagate
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from alpa_on_jax.xla_extension.planner import PlannedStage, PlanRequest
from integration.pipelines import COVERING, FACTORS, Case, cases, hold_steps, pipeline

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_pipelines")]


@pytest.mark.parametrize("case", cases("in this process"), ids=str)
def test_what_a_pipeline_gives_equals_the_serial_run(case: Case) -> None:
    case.hold()


def test_the_cases_here_and_on_hosts_let_each_value_meet_each_other() -> None:
    factors = {**FACTORS, "where": tuple(COVERING)}
    run = [
        {**{name: getattr(case, name) for name in FACTORS}, "where": where}
        for where, chosen in COVERING.items()
        for case in chosen
    ]
    for one, other in itertools.combinations(factors, 2):
        met = {(case[one], case[other]) for case in run}
        assert met == set(itertools.product(factors[one], factors[other])), f"{one} and {other}"


def test_cfp_measures_the_parts_of_each_stage_on_devices_like_the_stages(tmp_path: Path) -> None:
    database = tmp_path / "profiles.sqlite"
    option = CFPOption(database=database, samples=2, refine=0, progress=False)
    method = CFPPipeshardParallel(
        num_micro_batches=2,
        default_auto_sharding_option=option,
        layer_option=AutoLayerOption(layer_num=2),
        stage_option=UniformStageOption(num_stages=2),
    )
    hold_steps("mlp", method)
    with ProfileDatabase.open(database, readonly=True) as profiles:
        measured = [(key, profile) for key, profile in profiles.items() if profile.status == "measured"]
    assert measured
    assert {np.prod(key.mesh_shape) for key, _ in measured} == {4}


def _chosen_here(
    option: alpa.AutoShardingOption,
    model: str = "mlp",
    layers: int = 2,
    submeshes: tuple[tuple[int, int], ...] = ((1, 4), (1, 8)),
) -> list[list[int]]:
    """The layers of each stage that alpa chooses on parts of one host, and whose steps equal the serial ones."""
    stages = AutoStageOption(submesh_physical_shape_space="manual", manually_specified_submeshes=submeshes)
    hold_steps(model, pipeline(layers, stage_option=stages, default_auto_sharding_option=option))
    _, chosen, *_ = get_last_dp_result()
    assert chosen is not None
    return chosen


@dataclass
class Compared(CFPOption):
    """Says for each argument and result of a candidate's programs how many bytes of it a device has: as was told to
    alpa, and in the programs themselves."""

    told: list[int] = field(default_factory=list)
    found: list[int] = field(default_factory=list)

    def annotate_module(self, module: HloModule, request: PlanRequest) -> None:
        whole = dataclasses.replace(module)
        super().annotate_module(module, request)
        if self.plans_candidates:
            plan, ends = self.plans[-1], self.planned_stage(2).ends
            annotate(whole, AnalysedProgram(whole).blocks, LogicalMesh(plan.mesh_shape), plan.strategies)
            for name, stage in slice_stages(whole):
                self.told += _bytes(stage, ends[name].inputs, ends[name].outputs)
                self.found += _bytes(stage, stage.input_shardings or (), stage.output_shardings or ())


def _bytes(stage: HloModule, inputs: Sequence[ArraySharding], outputs: Sequence[ArraySharding]) -> list[int]:
    shapes = (*stage.shape.parameters, *stage.shape.results)
    shardings = (*inputs, *outputs)
    return [
        math.prod(sharding.local_shape(shape.dims)) * shape.dtype.itemsize
        for sharding, shape in zip(shardings, shapes, strict=True)
    ]


@functools.cache
def _composed(model: str, layers: int, shapes: Any, sizes: tuple[int, ...]) -> tuple[Compared, list[list[int]]]:
    """An option that has composed the costs of stages, and the layers of each that alpa has chosen by them."""
    option = Compared(costs="estimate", stage_costs="compose", logical_mesh_shapes=shapes, progress=False)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return option, _chosen_here(option, model, layers, tuple((1, size) for size in sizes))


# With three layers, a stage has two, whose updates stand in another order in the stage than in its candidate.
COMPOSED = pytest.mark.parametrize(
    ("model", "layers", "shapes", "sizes"), [("gpt", 3, "given", (4,)), ("mlp", 2, "all", (4, 8))]
)


@COMPOSED
def test_stages_are_chosen_within_one_process_where_their_costs_are_composed(
    model: str, layers: int, shapes: Any, sizes: tuple[int, ...]
) -> None:
    option, chosen = _composed(model, layers, shapes, sizes)
    candidates, stages = option.plans[: -len(chosen)], option.plans[-len(chosen) :]
    assert [layer for stage in chosen for layer in stage] == list(range(layers))
    assert len(chosen) == 2
    # Each run of layers on 2x2 devices, and all layers on 2x4 and 4x2 where stages may have 8. Alpa has more options,
    # but on a mesh of one axis no plan is better.
    assert len(candidates) == layers * (layers + 1) // 2 + 2 * (8 in sizes)
    # A chosen stage keeps the plan that it was chosen by, and says why it is that.
    assert all(dataclasses.replace(stage, account=None) in candidates for stage in stages)
    for stage in stages:
        assert stage.account is not None
        times = [stage.account.kinds[block.kind].alternatives[block.chosen].time_s for block in stage.account.blocks]
        moved_s = sum(move.time_s for move in stage.account.moves)
        assert sum(time_s or 0.0 for time_s in times) + moved_s == pytest.approx(stage.predicted_s, rel=1e-6)


@COMPOSED
def test_alpa_is_told_of_a_composed_stage_what_its_programs_take_and_leave(
    model: str, layers: int, shapes: Any, sizes: tuple[int, ...]
) -> None:
    option, _ = _composed(model, layers, shapes, sizes)
    equal = sum(told == found for told, found in zip(option.told, option.found, strict=True))
    # Some moments, and what is computed of them, lie in another way: no strategy says how, the whole stage does.
    assert equal >= 0.97 * len(option.found) > 0
    assert sum(option.told) == pytest.approx(sum(option.found), rel=0.02)


@dataclass
class Priced(alpa.AutoShardingOption):
    """Splits nothing, and says that a candidate stage takes the size of its program to a power."""

    power: int = 1
    composes = True
    sizes: list[int] = field(default_factory=list)
    ends: dict[str, BoundaryShardings] = field(default_factory=dict)

    def annotate_module(self, module: HloModule, request: PlanRequest) -> None:
        mesh = LogicalMesh(tuple(request.logical_mesh.shape))
        propagate(module, mesh, to_outputs=True, inputs=[None] * len(module.shape.parameters))
        self.sizes.append(len(module.bytecode))
        stages = {
            name: (stage.input_shardings or (), stage.output_shardings or ()) for name, stage in slice_stages(module)
        }
        self.ends = {name: BoundaryShardings(*shardings) for name, shardings in stages.items()}

    @contextlib.contextmanager
    def planning_stages(self, known: dict[str, Any]) -> Iterator["Priced"]:
        yield self

    def plan_key(self, logical_mesh: Any, fields: dict[str, Any]) -> int:
        return 0

    def dominates(self, logical_mesh: Any, other: Any) -> bool:
        return False

    def planned_stage(self, phases: int) -> PlannedStage:
        costs = (PhaseCost(float(self.sizes[-1]) ** self.power, 0),) * phases
        return PlannedStage(costs=costs, ends=self.ends)


@pytest.mark.parametrize(("power", "layers"), [(0, [[0, 1]]), (2, [[0], [1]])])
def test_alpa_chooses_stages_by_what_any_planner_of_stages_says_that_they_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, power: int, layers: list[list[int]]
) -> None:
    monkeypatch.chdir(tmp_path)
    option = Priced(power=power)
    assert _chosen_here(option) == layers
    # Three candidates on four devices and one on eight, each asked for once: all options are the same to this planner.
    assert len(option.sizes) == 3 + 1 + len(layers)
