"""The table of pipelines says what was planned, chosen and measured, in lines for each method."""

import dataclasses

import pytest

from alpa_cfp_bench.case import CFP, COMPOSED, ILP, PIPELINE_METHODS, Pipeline
from alpa_cfp_bench.checking import Difference
from alpa_cfp_bench.pipelines import PipelineComparison
from alpa_cfp_bench.table import lines
from unit.benchmarks.alpa_cfp_bench.comparisons import MACHINE, pipeline_comparison, pipeline_outcome


def text(found: PipelineComparison) -> str:
    return "\n".join(lines(found, MACHINE))


def row(found: PipelineComparison, name: str, table: int) -> list[str]:
    """The cells of a row in one of the tables; one of its name in the last ones is the first."""
    rows = [line for line in lines(found, MACHINE) if line.startswith(f"{name} ")]
    return [cell.strip() for cell in rows[table].split("  ") if cell.strip()]


def test_planning_is_shown_in_its_parts_with_the_programs_of_both() -> None:
    # Of 20 s, 12.49 s are none of the parts; what takes no time is left out.
    assert row(pipeline_comparison(), CFP, 0) == [CFP, "20.0 s", "3.0 s", "4.5 s", "12.5 s", "12", "7"]
    assert row(pipeline_comparison(), ILP, 0)[-1] == "12"


def test_steps_have_spread_ratio_prediction_and_memory() -> None:
    cells = row(pipeline_comparison(), CFP, 1)
    assert cells == [CFP, "40.0 ms", "± 3%", "0.80", "0.80 to 0.80", "9.00 ms", "2.0 MB"]


def test_each_stage_has_layers_submesh_logical_mesh_and_cost() -> None:
    first, second = pipeline_outcome(CFP, 40.0).stages
    found = pipeline_comparison(
        pipeline_outcome(CFP, 40.0, stages=(dataclasses.replace(first, layers=(0, 1, 2)), second))
    )
    assert row(found, "cfp, 0", 0) == ["cfp, 0", "0 to 2", "1x2", "2x1", "1.00 ms", "2.0 MB"]
    assert row(found, "cfp, 1", 0)[:2] == ["cfp, 1", "1"]
    apart = pipeline_comparison(
        pipeline_outcome(CFP, 40.0, stages=(dataclasses.replace(first, layers=(0, 4, 5)), second))
    )
    assert row(apart, "cfp, 0", 0)[:2] == ["cfp, 0", "0, 4 to 5"]


def test_the_head_says_how_the_pipeline_is_made() -> None:
    assert ", as a pipeline: 2 layers, stages chosen by alpa, 1f1b\n" in text(pipeline_comparison())
    fixed = pipeline_comparison(pipeline=Pipeline(4, 2, "gpipe"))
    assert ", as a pipeline: 4 layers, 2 stages, gpipe\n" in text(fixed)
    assert "candidate stages\nplan" not in text(fixed)
    chosen = pipeline_comparison(
        pipeline_outcome(CFP, 40.0, schedule="zero_bubble"),
        pipeline_outcome(ILP, 50.0),
        pipeline=Pipeline(4, 2, "auto"),
    )
    assert ", 2 stages, schedule by costs (cfp zero_bubble, alpa-ilp 1f1b)\n" in text(chosen)


def test_equal_stages_are_said_to_be_equal() -> None:
    assert "alpa-ilp has the same layers on the same submeshes as cfp" in text(pipeline_comparison())
    one = pipeline_outcome(ILP, 50.0, stages=pipeline_outcome(ILP, 50.0).stages[:1])
    assert "the same layers" not in text(pipeline_comparison(pipeline_outcome(CFP, 40.0), one))


def test_composed_costs_are_held_against_measured_ones() -> None:
    assert (
        "put together for 3 candidate stages are 1.50 of what alpa measured for cfp (median); their rank correlation "
        "is 1.00"
    ) in text(pipeline_comparison())
    assert "put together" not in "\n".join(
        line for line in lines(pipeline_comparison(pipeline_outcome(CFP, 40.0)), MACHINE)
    )


def test_a_ratio_to_the_ilp_is_put_in_words() -> None:
    assert "The step of cfp-compose takes 0.82 of the time of the step that Alpa's ILP planned: 18% less" in text(
        pipeline_comparison()
    )


def test_a_wrong_method_is_named_with_the_array_that_differs() -> None:
    wrong = pipeline_outcome(
        CFP, 1.0, difference=Difference(0.25, "params/w"), is_right=False, samples=None, to_ilp=None
    )
    report = text(pipeline_comparison(wrong, pipeline_outcome(ILP, 50.0)))
    assert "cfp is WRONG: params/w differs from the serial run by 2.5e-01 of its largest entry" in report
    assert "1 of 2 methods give" in report


def test_steps_that_were_timed_in_turn_are_said_to_be() -> None:
    assert "all at once, in random order" in text(pipeline_comparison())
    assert "one method after the other, since" in text(pipeline_comparison(are_interleaved=False))


def test_each_method_is_explained() -> None:
    report = text(pipeline_comparison())
    assert all(PIPELINE_METHODS[name] in report for name in (CFP, COMPOSED, ILP))
    assert "beside 3 that were in its database before" in report


@pytest.mark.parametrize("width", [40, 80])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, lines(pipeline_comparison(), MACHINE, width))) <= width
