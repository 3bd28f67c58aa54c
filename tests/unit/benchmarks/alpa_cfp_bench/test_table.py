"""The table says what was measured, in a line for each method."""

import pytest

from alpa_cfp_bench.case import CFP, ILP, METHODS, RIVALS
from alpa_cfp_bench.running import Comparison
from alpa_cfp_bench.table import lines
from alpa_cfp_bench.text import aligned, size_text
from unit.benchmarks.alpa_cfp_bench.comparisons import MACHINE, comparison, outcome, wrong


def text(found: Comparison) -> str:
    return "\n".join(lines(found, MACHINE))


def row(found: Comparison, method: str, table: int = 0) -> list[str]:
    """The cells of a method's row in one of the two tables."""
    rows = [line for line in lines(found, MACHINE) if line.startswith(f"{method}  ")]
    return [cell.strip() for cell in rows[table].split("  ") if cell.strip()]


def test_a_row_has_planning_step_spread_ratio_with_interval_memory_and_prediction() -> None:
    cells = row(comparison(), CFP)
    assert cells == [CFP, "1.5 s", "40.0 ms", "± 3%", "0.80", "0.80 to 0.80", "9.8 MB", "38.5 ms"]


def test_the_ilp_is_one_by_itself() -> None:
    assert row(comparison(), ILP)[4] == "1"


def test_collectives_are_counted_and_weighed_by_kind() -> None:
    assert row(comparison(), CFP, table=1) == [CFP, "2 x, 2.0 MB", "3 x, 500.0 kB", "2.5 MB"]


def test_columns_without_a_number_are_left_out() -> None:
    report = text(comparison(outcome("zero2", 40.0, to_ilp=None)))
    header = next(line for line in report.splitlines() if line.startswith("method"))
    assert "ILP" not in header
    assert "predicted" not in header


def test_a_wrong_method_is_named_with_the_array_that_differs() -> None:
    report = text(comparison(outcome(ILP, 50.0), wrong("zero3")))
    assert "zero3 is WRONG: params/w differs from the serial run by 2.5e-01 of its largest entry" in report
    assert "1 of 2 methods give" in report


def test_equal_programs_are_said_to_be_equal() -> None:
    report = text(comparison(outcome(CFP, 40.0, same_as=""), outcome(ILP, 40.0), outcome("zero2", 40.0, same_as=CFP)))
    assert "zero2 has the same program as cfp" in report


def test_a_difference_from_the_ilp_is_named_where_the_interval_excludes_one() -> None:
    assert "0.80 of the time of the step that Alpa's ILP planned: 20% less" in text(comparison())
    assert "1.25 of the time of the step that Alpa's ILP planned: 25% more" in text(
        comparison(outcome(CFP, 62.5), outcome(ILP, 50.0))
    )


def test_no_difference_is_claimed_where_the_interval_includes_one() -> None:
    assert "as far as this run can tell" in text(comparison(outcome(CFP, 50.0), outcome(ILP, 50.0)))


def test_each_method_is_explained() -> None:
    report = text(comparison())
    assert METHODS[CFP] in report
    assert METHODS[ILP] in report
    of_rivals = text(comparison(*(outcome(name, 40.0) for name in RIVALS)))
    assert all(words in of_rivals for words in RIVALS.values())


def test_virtual_devices_are_called_virtual() -> None:
    assert "The 8 devices are virtual and share 2 cores" in text(comparison())
    assert "virtual" not in "\n".join(lines(comparison(), {**MACHINE, "devices": "8 x NVIDIA H100"}))


@pytest.mark.parametrize("width", [40, 60, 80])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    found = comparison(*(outcome(name, 40.0, predicted_s=0.04) for name in METHODS))
    report = lines(found, MACHINE, width)
    assert max(map(len, report)) <= width
    # Nothing is lost: each method has a row in each part of a table, and all numbers are there.
    assert set(" ".join(lines(found, MACHINE)).replace("-", " ").split()) <= set(
        " ".join(report).replace("-", " ").split()
    )


def test_a_table_that_is_too_wide_goes_on_below_itself_with_the_methods() -> None:
    heads = [line for line in lines(comparison(), MACHINE, 60) if line.startswith("method ")]
    assert [head.split()[1] for head in heads] == ["planning", "95%"]


def test_what_a_word_means_stays_below_itself() -> None:
    report = lines(comparison(), MACHINE, 60)
    first = next(number for number, line in enumerate(report) if line.startswith("ratio to ILP   its"))
    assert report[first + 1].startswith(" " * 15)


def test_columns_are_aligned() -> None:
    assert aligned([["a", "bb"], ["ccc", "d"]]) == ["a    bb", "-------", "ccc   d"]


def test_sizes_have_the_unit_that_fits() -> None:
    assert [size_text(size) for size in (4, 2_500, 9.8e6, 3e9)] == ["4 B", "2.5 kB", "9.8 MB", "3.0 GB"]
