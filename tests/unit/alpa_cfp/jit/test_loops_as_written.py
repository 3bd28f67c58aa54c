"""A program that gains little by being split runs with its loops as they are written where that is faster."""

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
from alpa_cfp.plan.plan_report import Alternative, BlockKind, BlockReport, PlanReport, Role
from alpa_cfp.profiling import TimeBudget
from alpa_cfp.search import MemoryUse


def chain(weights: jax.Array, x: jax.Array) -> jax.Array:
    return lax.scan(lambda x, weight: (jnp.tanh(x @ weight), None), x, weights)[0]


def traced(*, keeps_loops: bool) -> TracedFunction:
    weights, x = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((4, 8, 8), (8, 8)))
    return trace(chain, (weights, x), {}, (), "cpu", keeps_loops=keeps_loops)


UNROLLED, WITH_LOOPS = traced(keeps_loops=False), traced(keeps_loops=True)


def report(whole_s: float | None) -> PlanReport:
    """Of two equal blocks, each of which takes half of `whole_s` if it is not split."""

    def alternative(role: Role | None, time_s: float | None) -> Alternative:
        return Alternative((role,), "as used", time_s, "measured", "", 0, 0, 0, 0.0, ())

    own_s = None if whole_s is None else whole_s / 2
    kind = BlockKind("dot", 1, (), (alternative(None, own_s), alternative("samples", 0.1)))
    blocks = tuple(BlockReport(f"block {number}", 0, 1, (), 0) for number in range(2))
    return PlanReport(("x",), (kind,), blocks, (), (), 0.0, 0)


def chosen(
    unrolled_s: float | None,
    with_loops_s: float | Exception | None,
    *,
    whole_s: float | None = 1.0,
    budget: TimeBudget | None = None,
    **changes: int,
) -> tuple[TracedFunction, PlannedModule]:
    """The form that is taken if the plans of the two forms take so long, and without any split `whole_s`."""

    def planned(program: TracedFunction) -> PlannedModule:
        seconds = with_loops_s if program.keeps_loops else unrolled_s
        if isinstance(seconds, Exception):
            raise seconds
        plan = Plan("", (8,), (), 1.0, MemoryUse(0, 0, 0), "measure", measured_s=seconds, account=report(whole_s))
        return PlannedModule(plan, program.module)

    return faster_form(replace(UNROLLED, **changes), lambda: WITH_LOOPS, planned, budget or TimeBudget())


def test_a_traced_function_keeps_its_loops_or_has_them_unrolled() -> None:
    assert (UNROLLED.unrolled, WITH_LOOPS.unrolled) == (1, 0)
    assert b"while" not in UNROLLED.module.bytecode
    assert b"while" in WITH_LOOPS.module.bytecode
    assert not WITH_LOOPS.caveats


def test_loops_stay_as_they_are_written_if_splitting_gains_little_and_the_step_is_faster_so() -> None:
    program, made = chosen(2.0, 1.0)
    assert program.keeps_loops
    assert made.plan.measured_s == 1.0
    assert any("as they are written" in caveat.text for caveat in program.caveats)


def test_when_the_time_for_planning_is_over_the_other_form_is_not_planned() -> None:
    program, _ = chosen(2.0, AssertionError("planned"), budget=TimeBudget(0.0))
    assert not program.keeps_loops


@pytest.mark.parametrize(
    ("unrolled_s", "with_loops_s"),
    [
        (1.0, 2.0),
        (1.0, 0.995),
        (1.0, None),
        (1.0, NoRunnablePlanError(["it crashed"])),
        (1.0, ReplayError("no profiles")),
    ],
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


@pytest.mark.parametrize(("unrolled_s", "whole_s"), [(1.0, 3.1), (1.0, None), (None, 1.0)])
def test_the_loops_as_written_are_not_planned_where_splitting_gains_much_or_that_is_not_known(
    unrolled_s: float | None, whole_s: float | None
) -> None:
    assert not chosen(unrolled_s, TriedError(), whole_s=whole_s)[0].keeps_loops


def test_the_loops_as_written_are_planned_where_splitting_gains_little() -> None:
    with pytest.raises(TriedError):
        chosen(1.0, TriedError(), whole_s=2.9)
