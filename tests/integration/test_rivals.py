"""Steps that rivals planned equal the serial run, through alpa and through the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from alpa_cfp import CFPOption
from alpa_cfp.cli.main import main
from alpa_cfp_bench.case import FLEXFLOW, FLEXFLOW_OUR_COSTS, MAXTEXT, TOFU, TOFU_OUR_COSTS, Case
from alpa_cfp_bench.checking import difference, run_serially, tolerance
from alpa_cfp_bench.methods import plan_method
from alpa_cfp_bench.rivals.option import FlexFlowOption, RivalOption, TofuOption
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.sizes import TINY
from integration.planned import ESTIMATE, planned

pytestmark = pytest.mark.slow

OPTIONS = ESTIMATE.plan_options
RIVALS: dict[str, RivalOption] = {
    FLEXFLOW: FlexFlowOption(options=OPTIONS),
    FLEXFLOW_OUR_COSTS: FlexFlowOption(options=OPTIONS, whose="ours"),
    TOFU: TofuOption(options=OPTIONS),
    TOFU_OUR_COSTS: TofuOption(options=OPTIONS, whose="ours"),
}
CASES = [
    *[(model, rival, None) for model in ("mlp", "gpt") for rival in RIVALS],
    *[(model, rival, None) for model in ("moe", "llama") for rival in (FLEXFLOW, TOFU)],
    *[("mlp", rival, 2) for rival in (FLEXFLOW, TOFU)],
]


@pytest.mark.parametrize(("model", "rival", "num_micro_batches"), CASES)
def test_a_step_that_a_rival_planned_equals_the_serial_one(
    model: str, rival: str, num_micro_batches: int | None
) -> None:
    planned(model, "2x4", num_micro_batches, RIVALS[rival])


@pytest.mark.parametrize("num_micro_batches", [None, 2])
def test_llama_by_the_rules_of_maxtext_equals_the_serial_run(num_micro_batches: int | None) -> None:
    case = Case("llama", "2x4", TINY, num_micro_batches)
    model = build(case.model, case.size)
    program = plan_method(case, MAXTEXT, CFPOption()).program
    program()
    found = difference(program.loss(), program.state, run_serially(model, num_micro_batches))
    assert found.relative <= tolerance(model, None), found


def test_by_the_rules_of_maxtext_weights_are_gathered_and_each_device_has_an_eighth() -> None:
    planned_step = plan_method(Case("llama", "2x4", TINY), MAXTEXT, CFPOption())
    kernel: Any = planned_step.program.state.params["params"]["layer_0"]["gate"]["kernel"]
    assert kernel.addressable_shards[0].data.size == kernel.size / 8
    assert "all-gather" in {each.kind for each in planned_step.traffic}


def test_rivals_are_measured_beside_each_other_by_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "bench --model mlp --size tiny hidden=16 --mesh 1x2 --rounds 2 --copies 1 --methods"
    files = ["--json", str(tmp_path / "result.json"), "--database", str(tmp_path / "d.sqlite")]
    assert main([*words.split(), *RIVALS, *files]) == 0
    methods = json.loads((tmp_path / "result.json").read_text())["methods"]
    assert list(methods) == list(RIVALS)
    assert all(method["is_right"] and method["step"]["samples"] == 2 for method in methods.values())
    assert "arXiv 1807.05358" in capsys.readouterr().out


def test_a_rival_of_a_pipeline_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = "bench --method pipeshard --model mlp --size tiny --mesh 1x4 --micro-batches 2 --methods flexflow"
    assert main(words.split()) == 2
    assert "'flexflow' does not plan pipelines" in capsys.readouterr().err
