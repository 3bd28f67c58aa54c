"""The tables of the pages say what the results say, with both figures of the ILP."""

from typing import Any

import pytest

from benchmarks import page_tables, race_results


def method(ratio: float, *, of_other_rounds: float | None = None, same: bool = False, **more: Any) -> dict[str, Any]:
    def kept(paired: float) -> dict[str, float]:
        return {"paired": paired, "paired_low": paired - 0.02, "paired_high": paired + 0.02}

    return {
        "planning_s": 2.0,
        "samples": {"median_ms": 10.0 / ratio},
        "same_program": same,
        "cfp_ratio": kept(ratio),
        "cfp_ratio_of_other_rounds": kept(ratio if of_other_rounds is None else of_other_rounds),
        **more,
    }


def case(ilp: float, origin: str = "search", mesh: str = "1x8") -> dict[str, Any]:
    methods = {
        "cfp": method(1.0, same=True, plan={"origin": origin, "name": "data parallel"}),
        "alpa-ilp": method(ilp),
        "alpa-ilp-given": method(ilp - 0.1),
        "zero2": method(1.05, of_other_rounds=0.9),
        "alpa-ilp-again": method(2.0),
    }
    return {"model": "gpt", "mesh": mesh, "methods": methods}


def run(number: int, rows: list[dict[str, Any]], date: str = "2026-01-01 00:00 UTC") -> dict[str, Any]:
    machine = {"cores": 2, "cpu": "a processor", "devices": "8 x cpu", "date": date}
    machine |= {"versions": {"jax": "0.10.2", "alpa": "0.2.3"}}
    return {"command": f"race {number}", "machine": machine, "results": rows}


def section(*runs: list[dict[str, Any]]) -> str:
    """The section of some runs of one code."""
    kept = [run(number, rows) for number, rows in enumerate(runs)]
    return page_tables.section({"benchmark": "cfp_race", "codes": [{"code": "a", "runs": kept}]})


def test_the_ilp_with_all_shapes_and_on_the_mesh_as_given_both_stand_there() -> None:
    text = section([case(0.95)])
    assert "0.95 (0.93 to 0.97) | 0.85 (0.83 to 0.87)" in text
    assert "0.85 if the ILP has only the mesh as it is given" in text


def test_a_case_with_several_runs_stands_there_once_with_its_median() -> None:
    text = section([case(0.95)], [case(1.3)], [case(0.99)])
    assert text.count("GPT 1x8") == 1
    assert "0.99 (0.97 to 1.01)" in text
    assert "`race 0`, `race 1`, `race 2`" in text


def test_pieces_of_the_race_stand_there_together() -> None:
    assert "Over these 2 cases" in section([case(0.95)], [case(0.95, mesh="2x4")])


def test_a_plan_that_was_made_by_hand_is_not_the_searchs() -> None:
    assert "hand: data parallel" in section([case(0.95, origin="hand-made")])
    assert "| search |" in section([case(0.95)])
    both = section([case(0.95, origin="hand-made"), case(0.95, mesh="2x4")])
    assert "In 1 of 2 cases the selected plan is a hand-made baseline" in both
    assert "in 1 it comes from CFP's search" in both


def test_the_best_other_is_chosen_by_other_rounds_and_is_no_second_program_of_the_ilp() -> None:
    assert race_results.best_other(case(0.95)) == "alpa-ilp"
    assert race_results.best_other(case(0.5)) == "zero2"


def test_a_case_stands_there_as_the_last_code_measured_it_with_its_date() -> None:
    old = [case(0.6), case(0.9, mesh="2x4")]
    codes = [
        {"code": "a", "runs": [run(1, old)]},
        {"code": "b", "runs": [run(2, [case(0.95)], "2026-02-02 00:00 UTC")]},
    ]
    text = page_tables.section({"benchmark": "cfp_race", "codes": codes})
    assert "0.60" not in text
    assert "| 2026-02-02 |" in text
    assert "| 2026-01-01 |" in text


def test_a_result_from_before_the_ilp_had_all_shapes_is_no_ratio_to_it() -> None:
    old = case(0.7)
    del old["methods"]["alpa-ilp-given"]
    text = section([old])
    assert "| not run | 0.70 (0.68 to 0.72) |" in text
    assert "all shapes of the mesh" not in text


def test_the_summary_has_the_mean_and_the_range_of_each_comparison() -> None:
    report = {"benchmark": "cfp_race", "codes": [{"code": "a", "runs": [run(1, [case(0.8), case(0.5, mesh="2x4")])]}]}
    rows = page_tables.summary(report).splitlines()
    assert "| Alpa's ILP, the best of all mesh shapes | 0.63 | 0.50 to 0.80 | 2 |" in rows
    assert "| Alpa's ILP, on the mesh as given | 0.53 | 0.40 to 0.70 | 2 |" in rows


def test_each_section_of_a_page_is_made_anew_and_nothing_else_changes() -> None:
    report = {"benchmark": "cfp_race", "codes": [{"code": "a", "runs": [run(1, [case(0.95)])]}]}
    page = "before\n<!-- race summary: begin -->\nold\n<!-- race summary: end -->\nafter\n"
    written = page_tables.with_sections(page, report)
    assert written.startswith("before\n<!-- race summary: begin -->\n| CFP's step time")
    assert written.endswith("<!-- race summary: end -->\nafter\n")
    assert page_tables.with_sections(written, report) == written


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="race: begin"):
        page_tables.with_section("no markers", "race", "text")
    with pytest.raises(ValueError, match="one of race, race summary"):
        page_tables.with_sections("no markers", {})
