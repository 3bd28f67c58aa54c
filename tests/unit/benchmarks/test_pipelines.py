"""What the benchmark of pipelines takes as cases, and what it says of those in which there is nothing to plan."""

import copy
from pathlib import Path
from typing import Any

from benchmarks import pipelines, reports

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
