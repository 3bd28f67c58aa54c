"""On problems too large to list, the search finds the least time that an integer programme finds."""

import numpy as np
import pytest

from alpa_cfp.search import MemoryBudgetError, search
from unit.alpa_cfp.search.problems import by_integer_programme, random_problem

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("share", [0.0, 0.1, 0.4, 0.8])
@pytest.mark.parametrize(
    ("shape", "count"), [("chain", 30), ("chain with skips", 8), ("tree", 20), ("ring", 16), ("hub", 12)]
)
def test_the_least_time_is_that_of_the_integer_programme(shape: str, count: int, share: float) -> None:
    problem = random_problem(np.random.default_rng(count + int(10 * share)), count, (6, 6), shape, 1000)
    fastest = search(problem, None)
    with pytest.raises(MemoryBudgetError) as raised:
        search(problem, 0)
    least = raised.value.least_bytes
    budget = least + int(share * max(0, fastest.memory.total - least))
    plan = search(problem, budget)
    assert plan.memory.total <= budget
    assert plan.time_s == pytest.approx(by_integer_programme(problem, budget), rel=1e-9)


def test_a_byte_below_the_least_memory_the_integer_programme_finds_nothing_either() -> None:
    problem = random_problem(np.random.default_rng(7), 30, (6, 6), "chain", 1000)
    with pytest.raises(MemoryBudgetError) as raised:
        search(problem, 0)
    assert by_integer_programme(problem, raised.value.least_bytes) is not None
    assert by_integer_programme(problem, raised.value.least_bytes - 1) is None
