"""Stages of a pipeline are chosen for devices that are not here, by estimates: no compiler is needed."""

from pathlib import Path
from typing import Any

import alpa
import pytest
from alpa.pipeline_parallel import stage_construction

from alpa_cfp import CFPOption, plan_stages, target
from alpa_cfp.alpa.target_stages import StageCost, TargetStages, _Part
from alpa_cfp.errors import NoDevicesError, OptionError
from alpa_cfp.planner.request import TargetDevices
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.stages.session import StageSession
from alpa_cfp.targets.errors import TargetError
from alpa_cfp_bench.workloads.model import training_step
from alpa_cfp_bench.workloads.models import abstract
from alpa_cfp_bench.workloads.sizes import Size

LARGE = Size(batch=64, hidden=1024, sequence=256, vocabulary=4096)


def planned(name: str, option: CFPOption | None = None, **others: Any) -> TargetStages:
    model = abstract("gpt", LARGE)
    layers = alpa.AutoLayerOption(layer_num=2)
    step = training_step(model, alpa.value_and_grad)
    wanted = {"num_micro_batches": 4, "layer_option": layers, "option": option, **others}
    return plan_stages(step, target(name), model.state, model.batch, **wanted)


@pytest.fixture
def option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CFPOption:
    monkeypatch.chdir(tmp_path)  # alpa writes its table there
    database = tmp_path / "profiles.sqlite"
    return CFPOption(costs="estimate", stage_costs="compose", database=database, progress=False)


@pytest.mark.slow
def test_each_run_of_layers_has_a_cost_on_each_part_of_the_target_and_stages_are_chosen_by_them(
    option: CFPOption,
) -> None:
    before = {name: getattr(stage_construction, name) for name in ("get_compute_cost", "training_dp", "inference_dp")}
    found = planned("h100:2x2", option)
    costs = {(each.layers, each.submesh): each.cost_s for each in found.candidates}
    # A stage of one of two layers on all devices would leave none for the other.
    assert set(costs) == {
        *(((first, last), (1, count)) for first, last in ((0, 0), (1, 1), (0, 1)) for count in (1, 2)),
        ((0, 1), (2, 2)),
    }
    assert costs[(0, 1), (1, 1)] > costs[(0, 1), (1, 2)]
    assert costs[(0, 1), (1, 1)] > costs[(0, 0), (1, 1)]
    assert [layer for stage in found.stages for layer in range(stage.layers[0], stage.layers[1] + 1)] == [0, 1]
    assert sum(hosts * devices for hosts, devices in (stage.submesh for stage in found.stages)) == 4
    assert all(stage.cost_s == costs[stage.layers, stage.submesh] for stage in found.stages)
    # What was watched is alpa's own again, and the option that was given has no plans of it.
    assert before == {name: getattr(stage_construction, name) for name in before}
    assert option.plans == []


def test_a_step_takes_each_stage_once_and_the_longest_for_each_further_micro_batch() -> None:
    stages = tuple(StageCost((layer, layer), (1, 1), (1, 1), cost) for layer, cost in enumerate((1.0, 3.0, 2.0)))
    assert TargetStages(stages, stages, 4).latency_s == 6.0 + 3 * 3.0


def test_parts_of_a_target_are_targets_with_as_many_hosts_and_devices() -> None:
    whole = _Part.of(target("h100:2x8"))
    assert (whole.num_hosts, whole.num_devices_per_host, whole.target.name) == (2, 8, "h100:2x8")
    assert [part.target.name for part in whole.slice_profiling_submeshes(1, 4)] == ["h100:1x4"] * 4
    assert whole.slice_1d(0, [1]).target.name == "h100:1x8"


def test_a_stage_on_a_target_has_its_chips_memory_and_rates(tmp_path: Path) -> None:
    part, mesh = TargetDevices(target("h100:1x4")), (1, 4)
    options = CFPOption(costs="estimate", database=tmp_path / "profiles.sqlite").plan_options
    with StageSession.open(options) as session:
        model = session.cost_model(part, LogicalMesh(mesh))
        model._calibrate()
    assert model.device_bytes == part.target.chip.memory_bytes
    assert model.rates.bytes_per_s == pytest.approx(0.85 * part.target.chip.memory_bytes_per_s)


@pytest.mark.parametrize(
    ("name", "options", "others", "error", "message"),
    [
        ("v5e:2x4", {}, {}, TargetError, "stages of a pipeline cannot have parts of v5e:2x4"),
        ("h100:1x4", {"costs": "measure"}, {}, NoDevicesError, "wants to run programs on h100:1x4"),
        ("h100:1x4", {"stage_costs": "profile"}, {}, OptionError, "on a target it is 'compose': nothing is timed"),
        ("h100:1x4", {}, {"stage_option": alpa.UniformStageOption()}, OptionError, "it is an alpa.AutoStageOption"),
    ],
)
def test_what_cannot_be_on_a_target_is_refused(
    name: str, options: dict[str, Any], others: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        planned(name, CFPOption(**{"costs": "estimate", "stage_costs": "compose", **options}), **others)
