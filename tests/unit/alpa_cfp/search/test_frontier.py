"""A frontier drops only what enough labels dominate, and truncated runs are repeated until they are exact."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.search import SearchProblem, search, solver
from alpa_cfp.search.frontier import frontier
from unit.alpa_cfp.search.problems import plans, problems

rows = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(-4, 4), st.integers(0, 1)), min_size=1, max_size=40
)


def kept(labels: list[tuple[int, int, int, int]], best: int, scale: float = 1.0) -> set[int]:
    state, time, summed, transient = np.array(labels, float).T
    return set(frontier(state.astype(np.int64), time, summed * scale, transient, best).tolist())


@pytest.mark.parametrize("scale", [1.0, 2.0**50])
@given(labels=rows, best=st.integers(1, 3))
def test_a_label_is_dropped_only_if_as_many_as_wanted_dominate_it(
    scale: float, labels: list[tuple[int, int, int, int]], best: int
) -> None:
    for dropped in set(range(len(labels))) - kept(labels, best, scale):
        state, *costs = labels[dropped]
        dominators = [
            other
            for index, (at, *other) in enumerate(labels)
            if at == state and index != dropped and all(a <= b for a, b in zip(other, costs, strict=True))
        ]
        assert len(dominators) >= best


@given(labels=rows)
def test_of_one_plan_wanted_no_two_labels_of_a_state_and_transient_dominate_each_other(
    labels: list[tuple[int, int, int, int]],
) -> None:
    left = [labels[index] for index in kept(labels, 1)]
    for index, (state, time, summed, transient) in enumerate(left):
        others = left[:index] + left[index + 1 :]
        assert not any(o[0] == state and o[3] == transient and o[1] <= time and o[2] <= summed for o in others)


@given(labels=rows, best=st.integers(1, 3))
def test_rows_come_sorted_by_state(labels: list[tuple[int, int, int, int]], best: int) -> None:
    state, time, summed, transient = np.array(labels, float).T
    order = frontier(state.astype(np.int64), time, summed, transient, best)
    assert (np.diff(state[order]) >= 0).all()


@given(problem=problems(), best=st.integers(1, 4), data=st.data())
def test_runs_that_truncate_are_repeated_wider_until_they_are_exact(
    problem: SearchProblem, best: int, data: st.DataObject
) -> None:
    listed = [s for s in plans(problem) if s.memory.total >= 0]
    if not listed:
        return
    budget = data.draw(st.sampled_from(listed)).memory.total
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver, "_FIRST_WIDTH", 1)
        patch.setattr(solver, "_FIRST_PER_STATE", 0)
        patch.setattr(solver, "_SECOND_WIDTH", 2)
        patch.setattr(solver, "_EXACT_WIDTH", 1)
        patch.setattr(solver, "_WIDER", 2)
        patch.setattr(solver, "_SHARE", data.draw(st.sampled_from([0.0, 0.5, 100.0])))
        found = search(problem, budget, best=best)
    fitting = [s for s in plans(problem) if s.memory.total <= budget][:best]
    assert [(s.time_s, s.memory.total) for s in found] == [(s.time_s, s.memory.total) for s in fitting]


def test_the_search_needs_no_jax() -> None:
    code = "import sys, alpa_cfp.search; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
