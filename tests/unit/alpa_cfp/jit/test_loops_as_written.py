"""A program whose best plan splits nothing runs with its loops as they are written where that was measured faster."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from alpa_cfp.errors import NoRunnablePlanError, ReplayError
from alpa_cfp.jit.loops_as_written import faster_form
from alpa_cfp.jit.tracing import TracedFunction, trace
from alpa_cfp.plan.plan import Plan
from alpa_cfp.plan.plan_cache import PlannedModule
from alpa_cfp.search import MemoryUse
from alpa_cfp.strategies.block_strategy import BlockStrategy

WHOLE, SPLIT = BlockStrategy((None,)), BlockStrategy((0,))


def chain(weights: jax.Array, x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 4, lambda _, x: jnp.tanh(x @ weights), x)


def traced(*, keeps_loops: bool) -> TracedFunction:
    array = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    return trace(chain, (array, array), {}, (), "cpu", keeps_loops=keeps_loops)


UNROLLED, WITH_LOOPS = traced(keeps_loops=False), traced(keeps_loops=True)


def chosen(
    unrolled_s: float | None, with_loops_s: float | Exception | None, *, strategy: BlockStrategy = WHOLE, **changes: int
) -> tuple[TracedFunction, PlannedModule]:
    """The form that is taken if the plans of the two forms take so long."""

    def planned(program: TracedFunction) -> PlannedModule:
        seconds = with_loops_s if program.keeps_loops else unrolled_s
        if isinstance(seconds, Exception):
            raise seconds
        plan = Plan("", (8,), (WHOLE, strategy), 1.0, MemoryUse(0, 0, 0), "measure", measured_s=seconds)
        return PlannedModule(plan, program.module)

    return faster_form(replace(UNROLLED, **changes), lambda: WITH_LOOPS, planned)


def test_a_traced_function_keeps_its_loops_or_has_them_unrolled() -> None:
    assert (UNROLLED.unrolled, WITH_LOOPS.unrolled) == (1, 0)
    assert b"while" not in UNROLLED.module.bytecode
    assert b"while" in WITH_LOOPS.module.bytecode
    assert not WITH_LOOPS.caveats


def test_loops_stay_as_they_are_written_if_nothing_is_split_and_the_step_is_faster_so() -> None:
    program, made = chosen(2.0, 1.0)
    assert program.keeps_loops
    assert made.plan.measured_s == 1.0
    assert any("as they are written" in caveat.text for caveat in program.caveats)


@pytest.mark.parametrize(
    ("unrolled_s", "with_loops_s"),
    [(1.0, 2.0), (1.0, None), (1.0, NoRunnablePlanError(["it crashed"])), (1.0, ReplayError("no profiles"))],
)
def test_loops_stay_unrolled_if_they_are_not_faster_as_written(
    unrolled_s: float, with_loops_s: float | Exception | None
) -> None:
    program, made = chosen(unrolled_s, with_loops_s)
    assert not program.keeps_loops
    assert made.plan.measured_s == unrolled_s


class TriedError(Exception):
    """The second form was planned."""


@pytest.mark.parametrize("changes", [{"unrolled": 0}, {"names_mesh": 1}])
def test_the_loops_as_written_are_not_planned_where_they_are_the_same_or_what_they_say_would_be_lost(
    changes: dict[str, int],
) -> None:
    assert not chosen(2.0, TriedError(), **changes)[0].keeps_loops


def test_the_loops_as_written_are_not_planned_where_the_plan_splits_something_or_nothing_was_measured() -> None:
    assert not chosen(2.0, TriedError(), strategy=SPLIT)[0].keeps_loops
    assert not chosen(None, TriedError())[0].keeps_loops
    with pytest.raises(TriedError):
        chosen(2.0, TriedError())
