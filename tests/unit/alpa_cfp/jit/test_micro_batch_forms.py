"""With a memory budget that a step does not fit into, it is planned in micro-batches, too."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import pytest

from alpa_cfp.errors import MicroBatchError
from alpa_cfp.jit.micro_batch_forms import fastest_parts, in_parts, possible_parts
from alpa_cfp.jit.recomputation import Made
from alpa_cfp.jit.tracing import TracedFunction, trace
from alpa_cfp.plan.plan import Plan
from alpa_cfp.plan.plan_cache import PlannedModule
from alpa_cfp.plan.signature import MicroBatches, Recomputed
from alpa_cfp.profiling import TimeBudget
from alpa_cfp.search import MemoryBudgetError, MemoryUse

MB = 1_000_000
PARTS = tuple(MicroBatches(count, (1,)) for count in (2, 4, 8))
PROGRAM = trace(lambda x: x + 1, (jax.ShapeDtypeStruct((16,), jnp.float32),), {}, (), "cpu")
AGAIN = (Recomputed(0, (0,), False, MB),)


@dataclass
class Planner:
    """Stands for the planner: a step needs 100 MB and 1 s; in parts so many times less memory, and 10% more time for
    each doubling. Computing again needs half the memory, and takes `again_s`.
    """

    budget: int | None
    again_s: float | None = None
    fails: MicroBatchError | None = None
    tried: list[int] = field(default_factory=list)

    def whole(self) -> Made:
        if self.budget is not None and self.budget < 100 * MB and self.again_s is not None:
            return self._made(replace(PROGRAM, recomputed=AGAIN), self.again_s, 50 * MB)
        return self._made(PROGRAM, 1.0, 100 * MB)

    def of_parts(self, parts: MicroBatches) -> Made:
        self.tried.append(parts.count)
        if self.fails is not None:
            raise self.fails
        seconds = 1 + 0.1 * (parts.count.bit_length() - 1)
        return self._made(replace(PROGRAM, micro_batches=parts), seconds, 100 * MB // parts.count)

    def _made(self, program: TracedFunction, seconds: float, size: int) -> Made:
        if self.budget is not None and size > self.budget:
            raise MemoryBudgetError(size, self.budget, (0, size, 0), ("block 0",) * 3)
        plan = Plan("", (8,), (), seconds, MemoryUse(0, size, 0), "estimate")
        return program, PlannedModule(plan, program.module)

    def chosen(self, possible: Sequence[MicroBatches] = PARTS, time: TimeBudget | None = None) -> TracedFunction:
        possible = possible if self.budget is not None else ()
        return fastest_parts(self.whole, self.of_parts, possible, time or TimeBudget())[0]


@pytest.mark.parametrize("budget", [None, 100 * MB])
def test_without_a_budget_and_where_the_step_fits_samples_go_through_it_at_once(budget: int | None) -> None:
    planner = Planner(budget)
    assert planner.chosen() is PROGRAM
    assert planner.tried == []


def test_of_the_numbers_that_fit_the_first_is_taken() -> None:
    planner = Planner(30 * MB)
    assert planner.chosen().micro_batches == PARTS[1]
    assert planner.tried == [2, 4]


@pytest.mark.parametrize(("again_s", "expected"), [(1.05, None), (1.3, PARTS[0])])
def test_where_both_fit_the_faster_of_computing_again_and_micro_batches_is_taken(
    again_s: float, expected: MicroBatches | None
) -> None:
    found = Planner(60 * MB, again_s).chosen()
    assert found.micro_batches == expected
    assert bool(found.recomputed) == (expected is None)


def test_where_nothing_fits_the_error_is_that_of_the_least_bytes() -> None:
    with pytest.raises(MemoryBudgetError) as caught:
        Planner(10 * MB).chosen()
    assert caught.value.least_bytes == 100 * MB // 8


def test_a_step_that_cannot_be_divided_is_told_and_does_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    planner = Planner(60 * MB, fails=MicroBatchError.not_separate("it has a norm over the batch"))
    with caplog.at_level(logging.WARNING), pytest.raises(MemoryBudgetError) as caught:
        planner.chosen()
    assert caught.value.__cause__ is planner.fails
    assert "the samples do not go through the step in micro-batches: " in caplog.text
    assert planner.tried == [2]


def test_when_the_time_for_planning_is_over_a_plan_that_fits_is_enough() -> None:
    planner = Planner(60 * MB, again_s=2.0)
    assert planner.chosen(time=TimeBudget(0.0)).recomputed == AGAIN
    assert planner.tried == []


@pytest.mark.parametrize(("samples", "counts"), [(16, [2, 4, 8]), (12, [2, 4]), (6, [2]), (5, []), (2, []), (1, [])])
def test_parts_are_equal_and_have_two_samples_at_least(samples: int, counts: list[int]) -> None:
    batch = {"x": jax.ShapeDtypeStruct((samples, 3), jnp.float32), "y": jnp.zeros(samples)}
    assert [each.count for each in possible_parts(((), batch), 1)] == counts


def test_arguments_with_different_numbers_of_samples_are_an_error() -> None:
    with pytest.raises(MicroBatchError, match=r"have \[3, 4\] samples"):
        list(possible_parts((jnp.zeros(3), jnp.zeros(4)), (0, 1)))


@pytest.mark.parametrize("positions", [2, -3, (0, 5)])
def test_a_position_without_an_argument_is_an_error(positions: int | tuple[int, ...]) -> None:
    with pytest.raises(MicroBatchError, match="names arguments by their positions, of which there are 2"):
        list(possible_parts((jnp.zeros(4), jnp.zeros(4)), positions))


def test_a_negative_position_counts_from_the_last_argument() -> None:
    assert [each.batch_argnums for each in possible_parts((jnp.zeros(3), jnp.zeros(4)), -1)] == [(1,)]


def test_a_function_that_asserts_how_many_samples_it_has_is_not_divided() -> None:
    def fixed(x: jax.Array) -> jax.Array:
        assert x.shape[0] == 8
        return x.sum()

    with pytest.raises(MicroBatchError, match="it cannot be computed for fewer samples"):
        in_parts(fixed, MicroBatches(2, (0,)))(jnp.zeros((8, 2)))
