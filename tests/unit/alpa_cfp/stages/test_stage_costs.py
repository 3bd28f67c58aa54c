"""Stage costs that are composed from segments: the programs that are measured for them, and their accuracy."""

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_cfp.analysis.blocks import find_blocks
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.apply.annotate import annotate
from alpa_cfp.apply.micro_batch_programs import micro_batch_programs
from alpa_cfp.candidates.accumulation import micro_batch_s
from alpa_cfp.costs import Rates, estimated_s, read_local, work_of
from alpa_cfp.database import Collective, Profile, utc_now
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.search import MemoryBudgetError
from alpa_cfp.select.profile_source import Samples, TrackedSource
from alpa_cfp.spmd import partition
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.stages import stage_costs
from alpa_cfp.stages.stage_costs import Composed, StageCostModel, contraction_kind
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding
from alpa_cfp_bench.workloads.sizes import TINY
from unit.alpa_cfp.spmd.helpers import lower, marked
from unit.alpa_cfp.training_steps import model_module, stage_module, two_layer_module

pytestmark = pytest.mark.slow

MESH = LogicalMesh((1, 4))
NOTHING = {f"{name}_bytes": 0 for name in ("argument", "output", "aliased", "temporary")}
RATES = Rates(flops_per_s=3e9, bytes_per_s=2e9, latency_s=3e-4, link_bytes_per_s=5e8, dispatch_s=2e-5, array_s=1e-6)
HALF = Rates(flops_per_s=1.5e9, bytes_per_s=1e9, latency_s=6e-4, link_bytes_per_s=2.5e8, dispatch_s=4e-5, array_s=2e-6)


class Machine:
    """A mesh on which programs take as long as they do by some rates."""

    def __init__(self, rates: Rates = RATES, *, is_broken: bool = False) -> None:
        self.rates, self.is_broken = rates, is_broken
        self.asked: list[HloModule] = []

    def __call__(self, modules: Sequence[HloModule], samples: Samples = None, /) -> list[Profile]:
        del samples
        self.asked += [module for module in modules if module.name != "calibration"]
        return [self._profile(module) for module in modules]

    def seconds(self, module: HloModule) -> float:
        program = module.partitioned
        assert program is not None
        arrays = len(program.input_shardings) + len(program.output_shardings)
        return estimated_s(work_of(program, read_local(program)), self.rates) + self.rates.overhead_s(arrays)

    def _profile(self, module: HloModule) -> Profile:
        if self.is_broken and module.name != "calibration":
            return Profile(status="failed", created_at=utc_now(), failure="crashed", failure_message="it did")
        seconds = self.seconds(module)
        return Profile(
            status="measured", created_at=utc_now(), samples_s=(seconds,), compile_s=0.1, **cast(Any, NOTHING)
        )


def cost_model(machine: Machine | None) -> StageCostModel:
    return StageCostModel(MESH, 1 << 30, cast(TrackedSource, machine))


def composed(model: StageCostModel, module: HloModule, budget: int | None = None, micro_batches: int = 4) -> Composed:
    return model.compose(AnalysedProgram(module), {}, micro_batches, budget, 60.0)


def gpt(layers: int) -> HloModule:
    return model_module("gpt", dataclasses.replace(TINY, layers=layers))


def strategies(composed: Composed) -> list[BlockStrategy]:
    choices = composed.solution.choices
    return [each.candidates[choice].strategy for each, choice in zip(composed.block_candidates, choices, strict=True)]


def micro_batch_on(machine: Machine, module: HloModule, plan: Sequence[BlockStrategy]) -> float:
    """The time of alpa's programs of a micro-batch on a machine."""
    whole = dataclasses.replace(module)
    annotate(whole, find_blocks(read_graph(module.bytecode)), MESH, plan)
    return sum(map(machine.seconds, micro_batch_programs(whole, AnalysedProgram(module))))


def test_rates_are_fitted_to_what_compiled_segments_communicate() -> None:
    class Reading(Machine):
        """Its compiled segments communicate nothing but this."""

        def _profile(self, module: HloModule) -> Profile:
            read = (Collective("all-reduce", 64, 4, 1),)
            return dataclasses.replace(super()._profile(module), collectives=read, collectives_compiled=True)

    known = cost_model(Reading())
    composed(known, stage_module("mlp"))
    assert {work.collectives for work in known._works} >= {(partition.Collective("all-reduce", 64, 4),)}


@pytest.mark.parametrize("rates", [RATES, HALF], ids=["fast", "half as fast"])
@pytest.mark.parametrize(("name", "layers"), [("mlp", 2), ("gpt", 2), ("gpt", 4)])
def test_what_is_composed_for_a_machine_of_known_rates_is_what_a_micro_batch_takes_there(
    name: str, layers: int, rates: Rates
) -> None:
    machine, module = Machine(rates), stage_module(name, dataclasses.replace(TINY, layers=layers))
    found = composed(cost_model(machine), module)
    seconds = micro_batch_on(machine, module, strategies(found))
    # A segment alone makes what several use once more.
    assert sum(cost.time_s for cost in found.costs(1)) == pytest.approx(seconds, rel=0.15)


def with_little_memory(machine: Machine, module: HloModule, times: float) -> Composed:
    """The costs that are composed if a device may hold `times` the least memory of any plan."""
    with pytest.raises(MemoryBudgetError) as too_little:
        composed(cost_model(None), module, budget=1)
    return composed(cost_model(machine), module, budget=int(times * too_little.value.least_bytes))


@pytest.mark.parametrize("times", [1.0, 1.01, 1.05])
def test_where_weights_are_split_too_segments_gather_them_and_scatter_their_gradients(times: float) -> None:
    machine, module = Machine(), stage_module("gpt", dataclasses.replace(TINY, layers=2))
    found = with_little_memory(machine, module, times)
    assert StateSharding.ZERO3 in {strategy.state_sharding for strategy in strategies(found)}
    kinds = {each.kind for segment in machine.asked if segment.partitioned for each in segment.partitioned.collectives}
    assert kinds >= {"all-gather", "reduce-scatter"}
    seconds = micro_batch_on(machine, module, strategies(found))
    assert sum(cost.time_s for cost in found.costs(1)) == pytest.approx(seconds, rel=0.15)


@pytest.mark.parametrize("times", [1.0, 1.05, 1.2, 2.0])
def test_what_is_composed_holds_where_memory_is_short_and_blocks_exchange_much(times: float) -> None:
    machine, module = Machine(), stage_module("mlp", dataclasses.replace(TINY, layers=2))
    found = with_little_memory(machine, module, times)
    seconds = micro_batch_on(machine, module, strategies(found))
    assert sum(cost.time_s for cost in found.costs(1)) == pytest.approx(seconds, rel=0.1)


def test_a_block_that_only_the_update_has_is_not_measured() -> None:
    def step(x: jax.Array, w: jax.Array, sums: jax.Array) -> jax.Array:
        before, old = jax.lax.optimization_barrier((w, sums))
        (gradient,) = jax.lax.optimization_barrier((old + x.T @ (x @ before),))
        late, ready = jax.lax.optimization_barrier((w, gradient))
        return jax.lax.optimization_barrier((late - jnp.tanh(ready @ ready),))[0]

    names = ["gradient$start", "gradient$end", "0_apply_grad$start", "0_apply_grad$end"]
    machine, module = Machine(), marked(lower(step, (np.ones((64, 64), np.float32),) * 3), names)
    known = cost_model(machine)
    composed(known, module)
    (segment,) = machine.asked
    with mlir.context():
        text = str(mlir.parse(segment.bytecode))
    assert text.count("stablehlo.dot_general") == 2
    assert "stablehlo.tanh" not in text
    assert len(known.correction) == 2


@pytest.mark.parametrize(("tolerance", "rounds"), [(float("inf"), 1), (1.0, 2)])
def test_a_plan_that_was_measured_is_kept_unless_another_is_expected_to_be_faster_by_much(
    tolerance: float, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_costs, "_TOLERANCE", tolerance)
    # So much faster than is thought at first that another plan is better.
    machine = Machine(dataclasses.replace(RATES, flops_per_s=3e11, bytes_per_s=2e10))
    module = stage_module("gpt", dataclasses.replace(TINY, layers=2))
    composed(cost_model(machine), module)
    assert len(machine.asked) == 3 * rounds


def test_deeper_stages_of_the_same_kinds_of_blocks_are_not_measured_and_cost_a_layer_more_each() -> None:
    machine = Machine()
    known = cost_model(machine)
    costs = {4: sum(composed(known, gpt(4)).passes_s)}
    programs = len(machine.asked)
    assert 0 < programs <= 4
    costs |= {layers: sum(composed(known, gpt(layers)).passes_s) for layers in (2, 3)}
    assert len(machine.asked) == programs
    assert costs[4] - costs[3] == pytest.approx(costs[3] - costs[2], rel=0.05)


def test_a_block_is_of_the_same_kind_in_the_middle_and_at_the_end_of_a_stage() -> None:
    kinds = []
    for layers in (2, 5):
        graph = read_graph(gpt(layers).bytecode)
        kinds.append({contraction_kind(graph, block) for block in find_blocks(graph).blocks})
    assert kinds[0] == kinds[1]


def test_where_segments_cannot_be_measured_stages_are_estimated(caplog: pytest.LogCaptureFixture) -> None:
    broken = cost_model(Machine(is_broken=True))
    found = composed(broken, two_layer_module())
    assert set(broken.correction.values()) == {1.0}
    assert "a segment cannot be measured" in caplog.text
    assert sum(found.passes_s) > 0


def test_without_profiles_a_stage_takes_the_estimated_time_of_its_plan() -> None:
    found = composed(cost_model(None), two_layer_module(), micro_batches=1)
    work_s = 0.0
    for each, choice in zip(found.block_candidates, found.solution.choices, strict=True):
        candidate = each.candidates[choice]
        total_s, per_step_s = (estimated_s(work, Rates()) for work in (candidate.work, candidate.per_step))
        work_s += micro_batch_s(per_step_s, total_s)
    assert found.evidence.programs == 0
    assert work_s <= sum(found.passes_s) <= found.solution.time_s


def test_forward_and_backward_are_parts_of_one_whole() -> None:
    found = composed(cost_model(None), gpt(2))
    forward, backward = found.costs(2)
    (alone,) = found.costs(1)
    assert backward.time_s > forward.time_s > 0
    assert forward.time_s + backward.time_s == pytest.approx(alone.time_s + found.dispatch_s)
    assert forward.temporary_bytes == alone.temporary_bytes == found.solution.memory.transient
