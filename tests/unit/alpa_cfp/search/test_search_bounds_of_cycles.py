"""Where tables of more than two variables are too large, bounds are true and plans are near the best ones."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.search import Edge, SearchProblem, Variable, search
from alpa_cfp.search.dual import Dual, Part
from alpa_cfp.search.limits import Deadline
from alpa_cfp.search.local import Local
from alpa_cfp.search.messages import Messages
from alpa_cfp.search.prune import prune
from unit.alpa_cfp.search.problems import plans, problems

pytestmark = pytest.mark.slow

CYCLES = ("ring", "ladder", "hub", "clique", "any")


def random_graph(count: int, joined: int, choices: tuple[int, int], seed: int = 0) -> SearchProblem:
    """A chain with `joined` more edges at random; state that is sharded takes time."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(choices[0], choices[1] + 1, count)
    variables = []
    for number, size in enumerate(sizes):
        sharded = rng.random(size)
        state, saved, transient = ((1 - sharded) * 1e6).round(), (rng.random((2, size)) * 1e5).round()[0], 0
        variables.append(Variable(f"v{number}", 1 + sharded + rng.random(size), state, saved, transient))
    pairs = [(i, i + 1) for i in range(count - 1)]
    pairs += [tuple(rng.choice(count, 2, replace=False).tolist()) for _ in range(joined)]
    edges = [Edge(f"v{i}", f"v{j}", rng.random((sizes[i], sizes[j]))) for i, j in pairs]
    return SearchProblem(tuple(variables), tuple(edges))


@pytest.mark.parametrize("shape", CYCLES)
@given(data=st.data())
def test_a_bound_of_sweeps_is_never_above_the_fastest_plan(shape: str, data: st.DataObject) -> None:
    problem = data.draw(problems(shape))
    if not plans(problem):
        return
    messages = Messages(problem, Deadline())
    messages.reprice([v.time_s for v in problem.variables])
    fastest = plans(problem)[0].time_s
    for number in range(6):
        upward = number % 2 == 0
        assert messages.sweep(upward=upward) <= fastest + 1e-9
        assert problem.time(messages.decoded(upward=upward)) >= fastest


@given(data=st.data())
def test_sweeps_of_a_tree_end_with_the_time_of_its_fastest_plan(data: st.DataObject) -> None:
    problem = data.draw(problems(data.draw(st.sampled_from(["chain", "tree"]))))
    if plans(problem):
        messages = Messages(problem, Deadline())
        messages.reprice([v.time_s for v in problem.variables])
        bound = max(messages.sweep(upward=number % 2 == 0) for number in range(4))
        assert bound == pytest.approx(plans(problem)[0].time_s)
        assert problem.time(messages.decoded(upward=True)) == pytest.approx(bound)


@pytest.mark.parametrize("shape", CYCLES)
@given(data=st.data())
def test_bounds_of_all_parts_of_the_plans_are_true(shape: str, data: st.DataObject) -> None:
    problem = data.draw(problems(shape))
    if not plans(problem):
        return
    problem = prune(problem, Deadline(), memory=True).problem
    listed = plans(problem)
    budget = data.draw(st.sampled_from(listed)).memory.total
    fitting = [plan for plan in listed if plan.memory.total <= budget]
    dual = Dual(problem, budget, lambda plan, byte_s: None, Deadline())
    peaks = sorted({float(size) for v in problem.variables for size in v.transient_bytes})
    middle = data.draw(st.sampled_from(peaks))
    v = data.draw(st.integers(0, len(problem.variables) - 1))
    size = float(data.draw(st.sampled_from(problem.variables[v].summed_bytes.tolist())))
    for ranges in (((v, -math.inf, size),), ((v, size, math.inf),)):
        for low, high in ((0.0, middle), (middle, peaks[-1])):
            part = Part(low, high, ranges=ranges)
            inside = [
                plan.time_s
                for plan in fitting
                if low <= plan.memory.transient <= high
                and ranges[0][1] < problem.variables[v].summed_bytes[plan.choices[v]] <= ranges[0][2]
            ]
            for _ in range(8):
                part = dual.turn(part, math.inf)
                assert part.bound_s <= min(inside, default=math.inf) + 1e-9


@given(problem=problems(), data=st.data())
def test_a_plan_that_is_improved_without_a_budget_is_not_slower(problem: SearchProblem, data: st.DataObject) -> None:
    listed = plans(problem)
    if listed:
        plan = data.draw(st.sampled_from(listed))
        allowed = prune(problem, Deadline(), memory=True)
        begun = [
            kept.index(choice) if choice in kept else 0 for kept, choice in zip(allowed.kept, plan.choices, strict=True)
        ]
        found = Local(allowed.problem, math.inf, Deadline()).improved(begun)
        assert allowed.problem.time(found) <= allowed.problem.time(begun)


@pytest.mark.parametrize("share", [None, 0.3])
@pytest.mark.parametrize("limit_s", [0.0, 0.1])
def test_2000_variables_have_a_plan_that_fits_and_a_bound_in_nearly_no_time(
    limit_s: float, share: float | None
) -> None:
    problem = random_graph(2000, 1000, (8, 12))
    least, most = (sum(float(of(v.summed_bytes)) for v in problem.variables) for of in (np.min, np.max))
    budget = None if share is None else int(least + share * (most - least))
    found = search(problem, budget, time_limit_s=limit_s)
    assert budget is None or found.memory.total <= budget
    assert 0 < found.gap_s < found.time_s


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6])
def test_with_little_memory_plans_of_small_graphs_are_nearly_those_of_the_exact_search(share: float) -> None:
    problem = random_graph(24, 10, (4, 6), seed=3)
    least = sum(float(v.summed_bytes.min()) for v in problem.variables)
    fastest = search(problem, None)
    budget = int(least + share * (fastest.memory.total - least)) + 1
    exact, found = search(problem, budget), search(problem, budget, memory_limit_bytes=2**12)
    assert exact.gap_s == 0
    assert found.time_s - found.gap_s <= exact.time_s * (1 + 1e-12)
    assert found.time_s <= 1.001 * exact.time_s
    assert found.gap_s <= 0.05 * found.time_s
