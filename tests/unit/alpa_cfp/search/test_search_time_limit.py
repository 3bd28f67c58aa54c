"""A search that meets its time limit gives the best plan so far, with a true bound on how much it could be beaten."""

import itertools
import logging
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.search import InvalidProblemError, SearchProblem, Variable, search, solver
from alpa_cfp.search.limits import Deadline, OutOfTime
from unit.alpa_cfp.search.problems import plans, problems

ONE = SearchProblem((Variable("a", [1.0, 2.0], [2, 1]),))


def stop_after(patch: pytest.MonkeyPatch, checks: int) -> None:
    """Makes the limit be met when it is looked at for so many times."""
    counter = itertools.count(1)

    def check(self: Deadline) -> None:
        if next(counter) > checks:
            raise OutOfTime

    patch.setattr(Deadline, "check", check)


@given(problem=problems(), checks=st.integers(0, 200), data=st.data())
def test_no_plan_beats_what_is_given_by_more_than_the_gap(
    problem: SearchProblem, checks: int, data: st.DataObject
) -> None:
    listed = plans(problem)
    if not listed:
        return
    budget = data.draw(st.sampled_from(listed)).memory.total
    fitting = [s for s in plans(problem) if s.memory.total <= budget]
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, checks)
        found = search(problem, budget, time_limit_s=1.0)
    assert found.memory.total <= budget
    assert found.time_s - found.gap_s <= fitting[0].time_s + 1e-9
    assert fitting[0].time_s <= found.time_s


@given(problem=problems())
def test_a_limit_that_is_not_met_changes_nothing(problem: SearchProblem) -> None:
    if plans(problem):
        found = search(problem, None, time_limit_s=1e9)
        assert found == search(problem, None)
        assert found.gap_s == 0


def test_no_time_at_all_gives_a_plan_and_a_bound() -> None:
    plan = search(ONE, 1, time_limit_s=0.0)
    assert plan.choices == (1,)
    assert plan.time_s - plan.gap_s == min(ONE.variables[0].time_s)


def test_a_search_that_is_stopped_warns_by_how_much_its_plan_could_be_beaten(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        search(ONE, 1, time_limit_s=0.0)
    assert "could be beaten by at most" in caplog.text


def test_without_any_time_a_plan_that_single_changes_do_not_lead_to_is_found() -> None:
    # Each choice of most state is the smallest alone, and needs no transient; together they are larger than the others.
    lean, large = [60, 0], [0, 100]
    variables = [Variable(name, [1.0, 2.0], state_bytes=lean, transient_bytes=large) for name in ("a", "b")]
    plan = search(SearchProblem(tuple(variables)), 100, time_limit_s=0.0)
    assert plan.choices == (1, 1)


@pytest.mark.parametrize("limit", [-1.0, math.nan])
def test_a_time_limit_that_is_none_is_refused(limit: float) -> None:
    with pytest.raises(InvalidProblemError, match="time_limit_s="):
        search(ONE, None, time_limit_s=limit)


@given(problem=problems(), enough=st.floats(0.0, 0.5))
def test_a_search_that_may_end_close_to_the_best_plan_tells_how_close(problem: SearchProblem, enough: float) -> None:
    listed = plans(problem)
    if not listed:
        return
    found = search(problem, None, memory_limit_bytes=0, enough=enough)
    assert found.time_s - found.gap_s <= min(each.time_s for each in listed) + 1e-9
    # Without leave to end early the plan is no worse.
    assert search(problem, None, memory_limit_bytes=0).time_s <= found.time_s


@given(problem=problems())
def test_a_search_that_need_not_be_thorough_tells_how_close_it_came_where_a_pass_takes_long(
    problem: SearchProblem,
) -> None:
    listed = plans(problem)
    if not listed:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver, "_HEAVY", -1)
        patch.setattr(solver, "fastest_choices", lambda *_: pytest.fail("the exact search runs"))
        found = search(problem, None, thorough=False)
    assert found.time_s - found.gap_s <= listed[0].time_s + 1e-9
    assert listed[0].time_s <= found.time_s
    # Where no pass takes long, it is the best plan.
    assert search(problem, None, thorough=False) == search(problem, None)


def test_the_exact_search_ends_with_the_best_plan_however_little_is_enough() -> None:
    assert search(ONE, None, enough=10.0).choices == (0,)


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match=r"enough=-1\.0: a share is not negative"):
        search(ONE, None, enough=-1.0)
