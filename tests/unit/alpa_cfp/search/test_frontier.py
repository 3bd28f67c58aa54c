"""A frontier drops only dominated labels, and truncated runs are repeated until they are exact."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.search import SearchProblem, exact, search
from alpa_cfp.search.eliminate import frontier
from unit.alpa_cfp.search.problems import plans, problems

rows = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(-4, 4), st.integers(0, 1)), min_size=1, max_size=40
)


def kept(labels: list[tuple[int, int, int, int]], scale: float = 1.0) -> set[int]:
    state, time, summed, transient = np.array(labels, float).T
    return set(frontier(state.astype(np.int64), time, summed * scale, transient).tolist())


@pytest.mark.parametrize("scale", [1.0, 2.0**50])
@given(labels=rows)
def test_a_label_is_dropped_only_if_one_that_stays_dominates_it(
    scale: float, labels: list[tuple[int, int, int, int]]
) -> None:
    staying = kept(labels, scale)
    for dropped in set(range(len(labels))) - staying:
        state, *costs = labels[dropped]
        others = [labels[index][1:] for index in staying if labels[index][0] == state]
        assert any(all(a <= b for a, b in zip(other, costs, strict=True)) for other in others)


@given(labels=rows)
def test_no_two_labels_of_a_state_and_transient_that_stay_dominate_each_other(
    labels: list[tuple[int, int, int, int]],
) -> None:
    left = [labels[index] for index in kept(labels)]
    for index, (state, time, summed, transient) in enumerate(left):
        others = left[:index] + left[index + 1 :]
        assert not any(o[0] == state and o[3] == transient and o[1] <= time and o[2] <= summed for o in others)


@given(labels=rows)
def test_rows_come_sorted_by_state(labels: list[tuple[int, int, int, int]]) -> None:
    state, time, summed, transient = np.array(labels, float).T
    order = frontier(state.astype(np.int64), time, summed, transient)
    assert (np.diff(state[order]) >= 0).all()


@given(problem=problems(), data=st.data())
def test_runs_that_truncate_are_repeated_wider_until_they_are_exact(
    problem: SearchProblem, data: st.DataObject
) -> None:
    listed = plans(problem)
    if not listed:
        return
    budget = data.draw(st.sampled_from(listed)).memory.total
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "_FIRST_WIDTH", 1)
        patch.setattr(exact, "_FIRST_PER_STATE", 0)
        patch.setattr(exact, "_SECOND_WIDTH", 2)
        patch.setattr(exact, "_EXACT_WIDTH", 1)
        patch.setattr(exact, "_WIDER", 2)
        patch.setattr(exact, "_SHARE", data.draw(st.sampled_from([0.0, 0.5, 100.0])))
        found = search(problem, budget)
    best = next(s for s in listed if s.memory.total <= budget)
    assert (found.time_s, found.memory.total) == (best.time_s, best.memory.total)


def test_the_search_needs_no_jax() -> None:
    code = "import sys, alpa_cfp.search; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
