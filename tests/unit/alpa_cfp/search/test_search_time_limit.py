"""A search that meets its time limit gives the best plans so far, and says truly how far from proved they are."""

import itertools
import logging
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.search import Edge, InvalidProblemError, SearchProblem, TimeLimitError, Variable, search
from alpa_cfp.search.deadline import Deadline, OutOfTime
from unit.alpa_cfp.search.problems import plans, problems

ONE = SearchProblem((Variable("a", [1.0, 2.0], [2, 1]),))


def stop_after(patch: pytest.MonkeyPatch, checks: int) -> None:
    """Makes the limit be met when it is looked at for so many times."""
    counter = itertools.count(1)

    def check(self: Deadline) -> None:
        if self.limit_s is not None and next(counter) > checks:
            raise OutOfTime

    patch.setattr(Deadline, "check", check)


@given(problem=problems(), best=st.integers(1, 3), checks=st.integers(0, 200), data=st.data())
def test_no_plan_beats_what_is_given_by_more_than_the_gap(
    problem: SearchProblem, best: int, checks: int, data: st.DataObject
) -> None:
    listed = [s for s in plans(problem) if s.memory.total >= 0]
    if not listed:
        return
    budget = data.draw(st.sampled_from(listed)).memory.total
    fitting = [s for s in plans(problem) if s.memory.total <= budget]
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, checks)
        try:
            found = search(problem, budget, best=best, time_limit_s=1.0)
        except TimeLimitError:
            return
    assert 1 <= len(found) <= best
    for given_plan, true_plan in zip(found, fitting, strict=False):
        assert given_plan.memory.total <= budget
        assert given_plan.time_s - given_plan.gap_s <= true_plan.time_s + 1e-9
        assert true_plan.time_s <= given_plan.time_s


@given(problem=problems(), best=st.integers(1, 3))
def test_a_limit_that_is_not_met_changes_nothing(problem: SearchProblem, best: int) -> None:
    if plans(problem):
        found = search(problem, None, best=best, time_limit_s=math.inf)
        assert found == search(problem, None, best=best)
        assert all(plan.gap_s == 0 for plan in found)


def test_no_time_at_all_gives_a_plan_and_a_bound() -> None:
    (plan,) = search(ONE, 1, time_limit_s=0.0)
    assert plan.choices == (1,)
    assert plan.time_s - plan.gap_s == min(ONE.variables[0].time_s)


def test_a_search_that_is_stopped_warns_by_how_much_its_plan_could_be_beaten(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stop_after(monkeypatch, 2)
    with caplog.at_level(logging.WARNING):
        search(ONE, 1, time_limit_s=1.0)
    assert "could be beaten by at most" in caplog.text


def test_where_no_plan_is_easily_found_an_error_says_what_helps() -> None:
    # One variable's other choice alone takes more; both together take the least.
    variables = [Variable(name, [1.0, 2.0], state_bytes=[0, 1]) for name in ("a", "b")]
    problem = SearchProblem(variables, [Edge("a", "b", np.zeros((2, 2)), state_bytes=[[5, 9], [9, 0]])])
    (found,) = search(problem, 2)
    assert found.choices == (1, 1)
    with pytest.raises(TimeLimitError, match=r"within 2 bytes was found .* a longer time limit") as raised:
        search(problem, 2, time_limit_s=0.0)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


@pytest.mark.parametrize("limit", [-1.0, math.nan])
def test_a_time_limit_that_is_none_is_refused(limit: float) -> None:
    with pytest.raises(InvalidProblemError, match="time_limit_s="):
        search(ONE, None, time_limit_s=limit)
