"""`alpa-cfp bench` as a user runs it: a process of its own, which makes its devices itself."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from alpa_cfp import CFPOption
from alpa_cfp.cli.main import main
from alpa_cfp_bench.case import CFP, COMPOSED, DP_PIPELINE, ILP, INTER_OP, Case, Effort, Pipeline
from alpa_cfp_bench.pipelines import compare
from alpa_cfp_bench.places import places
from alpa_cfp_bench.progress import Progress
from alpa_cfp_bench.workloads.sizes import TINY

METHODS = ["cfp", "alpa-ilp", "propagation"]
CODE = "import sys; from alpa_cfp.cli.main import main; sys.exit(main())"

pytestmark = pytest.mark.slow


def test_three_methods_are_planned_checked_timed_and_kept(tmp_path: Path) -> None:
    kept, picture, plan = tmp_path / "result.json", tmp_path / "result.png", tmp_path / "plan.json"
    words = "bench --model mlp --size tiny hidden=16 --mesh 1x2 --rounds 2 --copies 1 --database profiles.sqlite"
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    result = subprocess.run(
        [sys.executable, "-c", CODE, *words.split(), "--methods", *METHODS, "--json", str(kept), "--picture",
         str(picture), "--save-plan", str(plan)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert "3 of 3 methods give the serial run's loss and state" in result.stdout
    content = json.loads(kept.read_text())
    assert list(content["methods"]) == METHODS
    assert content["machine"]["devices"] == "2 x cpu"
    assert content["profiled"] > 0
    assert all(method["is_right"] and method["step"]["samples"] == 2 for method in content["methods"].values())
    assert content["methods"]["cfp"]["predicted_ms"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert json.loads(plan.read_text())["mesh_shape"] == [1, 2]
    # Each thing that begins is a line, since stderr is no terminal; and no bar.
    assert "planning cfp\n" in result.stderr
    assert "%|" not in result.stderr


def test_alpas_ilp_gets_all_shapes_and_cfps_plan_says_where_it_comes_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "bench --model mlp --size tiny --mesh 2x2 --rounds 2 --copies 2 --methods cfp alpa-ilp alpa-ilp-given"
    words += " alpa-ilp-again --json"
    database = ["--database", str(tmp_path / "d.sqlite")]
    assert main([*words.split(), str(tmp_path / "result.json"), *database]) == 0
    methods = json.loads((tmp_path / "result.json").read_text())["methods"]
    assert sorted(methods["alpa-ilp"]["settings_ms"]) == ["1x4", "2x2", "2x2 mixed", "4x1"]
    assert methods["alpa-ilp-again"]["same_program_as"] in ("alpa-ilp", "cfp")
    plan = methods["cfp"]["plan"]
    assert plan["origin"] in ("search", "hand-made")
    assert plan["mesh"] in ("2x2", "1x4", "4x1")
    assert plan["measured_ms"] > 0
    said = capsys.readouterr().out
    assert "two equal programs of Alpa's ILP differ by" in said
    assert "over the 2 compiled copies of each program" in said


def test_pipelines_are_planned_checked_timed_and_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "bench --method pipeshard --model mlp --size tiny --mesh 1x4 --micro-batches 2 --pipeline-layers 4"
    words += " --costs estimate --rounds 2 --database d.sqlite --json result.json --reports reports"
    assert main(words.split()) == 0
    said = capsys.readouterr().out
    assert "2 of 2 methods give the serial run's loss and state" in said
    assert "as a pipeline: 4 layers, 2 stages, 1f1b" in said
    content = json.loads(Path("result.json").read_text())
    assert content["are_interleaved"]
    for method in content["methods"].values():
        assert [stage["layers"] for stage in method["stages"]] == [[0, 1], [2, 3]]
        assert [stage["submesh"] for stage in method["stages"]] == [[1, 2], [1, 2]]
        assert method["memory_bytes"] == max(stage["memory_bytes"] for stage in method["stages"]) > 0
        assert method["step"]["samples"] == 2
    reports = sorted(str(path.relative_to("reports")) for path in Path("reports").rglob("*.*"))
    assert reports == [f"cfp/stage-{number}.{ending}" for number in range(2) for ending in ("html", "json", "txt")]
    assert Path("reports/cfp/stage-1.txt").read_text().startswith("Plan for a 1x2 mesh")
    assert not list(tmp_path.glob("profile-results*"))


def test_pipelines_with_several_stages_on_each_mesh_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "bench --method pipeshard --model mlp --size tiny --mesh 1x4 --micro-batches 2 --costs estimate --rounds 2"
    words += " --schedule interleaved_1f1b --database d.sqlite --json result.json"
    assert main(words.split()) == 0
    said = capsys.readouterr().out
    assert "2 of 2 methods give the serial run's loss and state" in said
    assert "as a pipeline: 4 layers, 2 stages, interleaved_1f1b" in said
    for method in json.loads(Path("result.json").read_text())["methods"].values():
        assert method["schedule"] == "interleaved_1f1b"
        assert [stage["layers"] for stage in method["stages"]] == [[0, 2], [1, 3]]


def test_pipelines_that_share_their_devices_are_timed_in_turn(tmp_path: Path) -> None:
    case, effort = Case("mlp", "1x2", TINY, 2), Effort(2, 1)
    option = CFPOption(costs="estimate", database=tmp_path / "d.sqlite", progress=False)
    with places(case, None, 1) as where, Progress(0, io.StringIO()) as progress:
        found = compare(case, Pipeline(2, 2, "gpipe"), (CFP, ILP), effort, option, progress, where)
        assert found.is_right
        assert not found.are_interleaved
        assert [outcome.to_ilp for outcome in found.outcomes] == [None, None]
        assert all(outcome.samples is not None for outcome in found.outcomes)


def test_pipelines_without_a_planner_inside_of_stages_give_the_serial_result() -> None:
    case, methods = Case("gpt", "1x4", TINY, 2), (DP_PIPELINE, INTER_OP)
    inside = []
    for method, stages in zip(methods, (2, 4), strict=True):
        with places(case, None, 1) as where, Progress(0, io.StringIO()) as progress:
            pipeline = Pipeline(4, stages, "1f1b")
            found = compare(case, pipeline, (method,), Effort(2, 1), CFPOption(), progress, where)
        assert found.is_right
        inside.append([stage.submesh for stage in found.outcomes[0].stages])
    assert inside == [[(1, 2)] * 2, [(1, 1)] * 4]


def test_stages_are_chosen_by_composed_costs_in_this_process(tmp_path: Path) -> None:
    case = Case("mlp", "1x2", TINY, 2)
    option = CFPOption(costs="estimate", database=tmp_path / "d.sqlite", progress=False)
    with places(case, None, 1) as where, Progress(0, io.StringIO()) as progress:
        found = compare(case, Pipeline(2, None, "1f1b"), (COMPOSED,), Effort(2, 1), option, progress, where)
    (outcome,) = found.outcomes
    assert outcome.is_right
    assert outcome.programs == 0
    assert [layer for stage in outcome.stages for layer in stage.layers] == [0, 1]
    costs = [stage.cost_s or 0.0 for stage in outcome.stages]
    assert outcome.predicted_s == pytest.approx(sum(costs) + max(costs))
