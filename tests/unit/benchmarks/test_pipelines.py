"""What the benchmark of pipelines takes as cases, how it ends them, and what it says where there is nothing to plan."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import pipelines, reports

pytestmark = pytest.mark.slow

RESULTS = Path(pipelines.__file__).parent / "results" / "pipelines-jax0.11.2.json"


def _rows(model: str) -> list[dict[str, Any]]:
    return [row for row in reports.rows_of(reports.read(RESULTS)["codes"][-1]) if row["model"] == model]


def _lines(rows: list[dict[str, Any]]) -> list[bool]:
    """Of each case, whether it is said that there is nothing to plan inside of stages."""
    return ["there is nothing to plan inside of stages" in line for line in pipelines.verdicts(rows)]


def test_where_each_stage_has_one_device_it_is_said_that_nothing_is_planned_in_it() -> None:
    rows = copy.deepcopy(_rows("gpt"))
    for row in rows:
        row["stages"] = [{**stage, "submesh": [1, 1]} for stage in row["stages"]]
    assert all(_lines(rows))


def test_where_a_stage_has_several_devices_it_is_not() -> None:
    rows = copy.deepcopy(_rows("gpt"))
    for row in rows:
        row["stages"] = [{**stage, "submesh": [1, 2]} for stage in row["stages"]]
    assert not any(_lines(rows))


def test_models_are_cut_into_fewer_layers_than_there_are_devices() -> None:
    options = pipelines._parser().parse_args(["--models", "moe"])
    assert [case["pipeline_layers"] for case in pipelines._cases(options)] == [2] * 4
    options = pipelines._parser().parse_args(["--models", "moe", "--pipeline-layers", "8"])
    assert {case["pipeline_layers"] for case in pipelines._cases(options)} == {8}


def test_a_benchmark_that_is_interrupted_ends_the_case_that_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            if self not in begun:
                begun.append(self)
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    monkeypatch.setattr(pipelines, "_END_S", 2.0)  # started in the background, a process ignores interrupts
    with pytest.raises(KeyboardInterrupt):
        pipelines._run([sys.executable, "-c", "import time; time.sleep(600)"], 600.0)
    (case,) = begun
    assert case.poll() is not None


def test_a_case_that_is_late_is_ended_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "_END_S", 2.0)  # started in the background, a process ignores interrupts
    assert pipelines._run([sys.executable, "-c", "import time; time.sleep(600)"], 0.5) == "it took more than 0.5 s"
