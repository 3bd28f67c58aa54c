"""A row for each method, whatever becomes of the others; no process is started and nothing compiled here."""

from typing import Any

import pytest

from alpa_cfp import target
from alpa_cfp_bench.targets import comparison
from alpa_cfp_bench.targets.apart import Outcome
from alpa_cfp_bench.targets.case import Sized, TargetCase
from alpa_cfp_bench.targets.comparison import Limits, rows_of_case
from alpa_cfp_bench.targets.methods import Planned, Traced
from alpa_cfp_bench.targets.modelled import Modelled
from alpa_cfp_bench.targets.rankings import SCENARIOS, Row
from alpa_cfp_bench.workloads.sizes import Size
from benchmarks import targets
from unit.benchmarks.alpa_cfp_bench.targets.target_cases import small_case

H100 = target("h100:1x8")


def compared(
    monkeypatch: pytest.MonkeyPatch,
    answers: dict[Any, Any],
    methods: tuple[str, ...],
    limits: Limits = Limits(60),  # noqa: B008 - it is frozen
    case: TargetCase | None = None,
) -> dict[str, Row]:
    """The rows of a case, by method, where functions that would run in other processes give these answers."""
    called = []

    def answered(function: Any, *args: Any, limit_s: float) -> Outcome[Any]:
        called.append(function)
        answer = answers[function]
        given: Any = answer(*args) if callable(answer) else answer
        return given

    monkeypatch.setattr(comparison, "apart", answered)
    monkeypatch.setattr(comparison, "program_digest", lambda planned: planned.module)
    rows = rows_of_case(case or small_case(), methods, limits)
    return {each["method"]: each | {"compiled": called.count(comparison.modelled)} for each in rows}


def result(step_s: float, memory_bytes: int = 0) -> Outcome[Modelled]:
    return Outcome(Modelled(step_s, step_s, 0.0, 0.0, 0.0, memory_bytes, 0, 1.0, dict.fromkeys(SCENARIOS, step_s)))


STEP = Outcome(Traced(b"", 0, 1, 1.0, 1.0))


def test_a_crash_costs_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        comparison.traced: STEP,
        comparison.by_cfp: Outcome(None, "its process ended with exit code -11"),
        comparison.by_propagation: Outcome(Planned(b"p", 1.0)),
        comparison.modelled: result(1.0),
    }
    rows = compared(monkeypatch, answers, ("CFP", "propagation"))
    assert rows["CFP"]["failure"] == "its process ended with exit code -11"
    assert rows["propagation"]["step_s"] == 1.0
    assert len({len(targets._cells(each)) for each in rows.values()} | {len(targets._HEADER)}) == 1


def test_of_the_ilps_settings_the_fastest_that_fits_counts_with_the_planning_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    too_much = H100.chip.memory_bytes + 1
    found = {b"1x8 True": result(1.0, too_much), b"2x4 True": result(3.0), b"1x8 False": Outcome(None, "none")}

    def planned(case: TargetCase, step: Traced, mesh: tuple[int, int], mixed: bool, scatter: bool) -> Outcome[Planned]:
        del case, step, mixed
        name = f"{mesh[0]}x{mesh[1]} {scatter}"
        return Outcome(Planned(name.encode(), 10.0, name))

    answers = {
        comparison.traced: STEP,
        comparison.by_ilp: planned,
        comparison.modelled: lambda module, _: found.get(module, result(4.0)),
    }
    (best,) = compared(monkeypatch, answers, ("Alpa's ILP",)).values()
    assert (best["step_s"], best["said"], best["fits"]) == (3.0, "2x4 True", True)
    assert best["planning_s"] == 10.0 * len(best["settings"])


def test_equal_programs_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        comparison.traced: STEP,
        comparison.by_cfp: Outcome(Planned(b"same", 1.0)),
        comparison.by_propagation: Outcome(Planned(b"same", 1.0)),
        comparison.modelled: result(1.0),
    }
    rows = compared(monkeypatch, answers, ("CFP", "propagation"))
    assert [each["compiled"] for each in rows.values()][-1] == 1


def test_a_budget_is_no_more_than_a_program_can_have_there(monkeypatch: pytest.MonkeyPatch) -> None:
    case, memory_bytes = small_case(), H100.chip.memory_bytes
    assert Limits(60).budget_bytes(case) == memory_bytes
    assert Limits(60, memory_budget_bytes=1000).budget_bytes(case) == 1000
    assert Limits(60, memory_budget_bytes=2 * memory_bytes).budget_bytes(case) == memory_bytes
    answers = {
        comparison.traced: STEP,
        comparison.by_propagation: Outcome(Planned(b"p", 1.0)),
        comparison.modelled: result(1.0, 2000),
    }
    for budget, fits in ((1999, False), (2000, True)):
        rows = compared(monkeypatch, answers, ("propagation",), Limits(60, memory_budget_bytes=budget))
        assert rows["propagation"]["fits"] is fits


def test_samples_that_the_devices_do_not_divide_cost_propagation_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    case = TargetCase.on(Sized("mlp", Size(batch=2)), "h100:1x8")
    rows = compared(monkeypatch, {comparison.traced: STEP}, ("propagation",), case=case)
    assert rows["propagation"]["failure"] == "2 samples cannot be split into 8 equal parts"
