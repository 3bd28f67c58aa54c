"""Variables that much of the model is joined to are branched on, and that changes no answer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.search import Edge, MemoryBudgetError, SearchProblem, Variable, order, search
from alpa_cfp.search.limits import Deadline
from alpa_cfp.search.order import elimination_order
from unit.alpa_cfp.search.problems import SHAPES, budgets, plans, problems, random_problem

pytestmark = pytest.mark.slow


def with_hub(layers: int, choices: int = 3) -> SearchProblem:
    """Equal layers in a chain, and one more variable that each is joined to, whose choices trade time for memory."""
    rng = np.random.default_rng(11)
    layer = [1e-3, 1.4e-3, 1.9e-3], [9e8, 4e8, 1e8], [3e7, 2e7, 1e7], [5e8, 6e8, 4e8]
    step, spoke = rng.uniform(0, 2e-4, (3, 3)), rng.uniform(0, 1e-4, (3, choices))
    hub = Variable("hub", 1e-3 * np.arange(choices), 10**9 // (1 + np.arange(choices)))
    variables = [hub, *(Variable(f"layer {i}", *layer) for i in range(layers))]
    edges = [Edge(f"layer {i}", f"layer {i + 1}", step) for i in range(layers - 1)]
    edges += [Edge(f"layer {i}", "hub", spoke) for i in range(layers)]
    return SearchProblem(tuple(variables), tuple(edges))


@pytest.mark.parametrize(
    ("shape", "hubs"), [("chain", 0), ("tree", 0), ("ladder", 0), ("ring", 1), ("hub", 1), ("clique", 5)]
)
def test_what_is_carried_through_much_of_the_elimination_is_branched_on(shape: str, hubs: int) -> None:
    problem = random_problem(np.random.default_rng(1), 9, (3, 3), shape, 9)
    assert len(elimination_order(problem, Deadline()).hubs) == hubs


def test_the_hub_is_the_variable_that_all_are_joined_to() -> None:
    assert elimination_order(with_hub(8), Deadline()).hubs == (0,)


def test_a_hub_of_too_many_choices_to_bound_each_is_carried_along() -> None:
    problem = with_hub(8, choices=300)
    found = elimination_order(problem, Deadline())
    assert found.hubs == ()
    assert sum(0 in separator for separator in found.separators.values()) >= 5


@pytest.mark.parametrize("shape", SHAPES)
@given(data=st.data())
def test_branching_on_any_variables_finds_the_plan_that_branching_on_none_does(shape: str, data: st.DataObject) -> None:
    problem = data.draw(problems(shape))
    budget = data.draw(st.sampled_from(budgets(problem) or [0]))
    expected = [(s.time_s, s.memory.total) for s in plans(problem) if s.memory.total <= budget]
    for carried, cases in ((1, 10**6), (3, 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(order, "_CARRIED", carried)
            patch.setattr(order, "_SHARE", 0.0)
            patch.setattr(order, "_MOST_CASES", cases)
            if expected:
                found = search(problem, budget)
                assert (found.time_s, found.memory.total) == expected[0]


def test_equal_layers_with_a_hub_are_searched_exactly_at_every_budget() -> None:
    problem = with_hub(5)
    listed = plans(problem)
    totals = sorted({s.memory.total for s in listed})
    for budget in totals[:: len(totals) // 10]:
        fastest = min(s.time_s for s in listed if s.memory.total <= budget)
        assert search(problem, budget).time_s == pytest.approx(fastest, rel=1e-12)


def test_where_nothing_fits_with_a_hub_the_least_memory_is_exact() -> None:
    problem = with_hub(5)
    with pytest.raises(MemoryBudgetError) as raised:
        search(problem, 0)
    assert raised.value.least_bytes == min(s.memory.total for s in plans(problem))


def test_many_layers_with_a_hub_give_the_same_plan_each_time() -> None:
    problem = with_hub(40, choices=12)
    fastest = search(problem, None).memory.total
    assert search(problem, fastest * 2 // 3) == search(problem, fastest * 2 // 3)
