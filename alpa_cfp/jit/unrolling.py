"""Unrolls loops of known length, so that the planner sees each layer of a `lax.scan` over layers.

Takes a jaxpr as `jax.jit` traces it, gradients included; evaluates it with each `scan` (also of `lax.map`, and of
`lax.fori_loop` with a static trip count) as repeated calls of its body. A scan without anything to plan in its body
stays, and so may one over time steps (`recurrences`). Values that one loop stacks and another slices, such as the
residuals that a backward loop takes from its forward loop, are passed on without the stack, so that gradients are
matched with their forward operations. Between two steps there is a barrier on carried values (see `carried`), so that
the program is not slower than with the loop. Invariant: the same values, in the same order of operations.

Uses `jax.extend.core`, the way in which its `eval_jaxpr` binds an equation, and the parameters of `scan` and `remat2`,
tested with 0.10.2, 0.11.2 and 0.12.0.1.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
from jax import lax
from jax.extend import core

from alpa_cfp.jit import explicit
from alpa_cfp.jit.carried import values_with_barriers
from alpa_cfp.jit.jaxprs import REMAT, SCAN, WHILE, all_equations, called, scan_arguments
from alpa_cfp.jit.plannable import is_plannable, least_volume, volume
from alpa_cfp.jit.recurrences import are_worth_keeping, is_recurrence, says_what_lies_where, scans
from alpa_cfp.spmd.ir.step_barriers import step_barrier

# More equations than a model of 200 layers has. A loop with more equations when unrolled stays a loop.
MAX_EQUATIONS = 200_000
# The loops of a program of more equations than this stay if these multiply less than so often each, on average: to
# begin them takes longer than to compute them, so that to split them gains nothing.
MANY_EQUATIONS, LEAST_PER_EQUATION = 10_000, 5_000


@dataclasses.dataclass(frozen=True, slots=True)
class Loops:
    """The numbers of loops in a program; a loop inside a loop counts once.

    Attributes:
        unrolled: Scans that `evaluate` unrolls.
        unplanned: Scans without anything to plan, and all scans in branches of conditions.
        too_long: Other scans with more than the allowed number of equations when unrolled.
        dynamic: `while` loops, whose length depends on values.
        recurrences: Scans over time steps that stay.
        too_fine: Scans that stay since the program would become very many equations that compute next to nothing.
    """

    unrolled: int
    unplanned: int
    too_long: int
    dynamic: int
    recurrences: int = 0
    too_fine: int = 0


def find_loops(closed: Any, max_equations: int, *, chooses: bool = False) -> Loops:
    """Counts the loops of a closed jaxpr by what `evaluate` does with them.

    Args:
        closed: The jaxpr.
        max_equations: The greatest number of equations into which a loop is unrolled.
        chooses: Whether loops stay that are better so: those over time steps, and those of many small equations.
    """
    counts = {field.name: 0 for field in dataclasses.fields(Loops)}
    rule = _Rule(closed.jaxpr, max_equations, chooses)

    def visit(jaxpr: Any, is_evaluated: bool) -> None:
        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            if name == WHILE:
                counts["dynamic"] += 1
            elif name == SCAN and not (is_evaluated and rule.unrolls(eqn)):
                counts[rule.why_it_stays(eqn) if is_evaluated else "unplanned"] += eqn.params["length"] > 0
            else:
                counts["unrolled"] += name == SCAN
                for inner in core.jaxprs_in_params(eqn.params):
                    visit(inner, is_evaluated and (name == SCAN or called(eqn) is not None))

    visit(closed.jaxpr, True)
    return Loops(**counts)


def evaluate(closed: Any, args: Sequence[Any], max_equations: int, *, chooses: bool = False) -> list[Any]:
    """Returns the flat results of a closed jaxpr for `args`, with its loops unrolled. To be called while tracing.

    Args:
        closed: The jaxpr.
        args: Its flat arguments.
        max_equations, chooses: As for `find_loops`.
    """
    unroller = _Unroller(_Rule(closed.jaxpr, max_equations, chooses))
    return [_as_array(value) for value in unroller.evaluate(closed.jaxpr, closed.consts, args)]


@dataclasses.dataclass(frozen=True)
class _Rule:
    """Decides which scans of a program are unrolled.

    Attributes:
        jaxpr: The program.
        max_equations, chooses: As for `find_loops`.
    """

    jaxpr: Any
    max_equations: int
    chooses: bool

    def plans(self, eqn: Any) -> bool:
        """Whether a scan contains anything to plan."""
        return any(is_plannable(inner, self._least_volume) for inner in core.jaxprs_in_params(eqn.params))

    def unrolls(self, eqn: Any) -> bool:
        """Whether a scan is unrolled."""
        return not self.why_it_stays(eqn)

    def why_it_stays(self, eqn: Any) -> str:
        """The field of `Loops` that counts a scan which is not unrolled; "" if it is."""
        if not self.plans(eqn):
            return "unplanned"
        if self._keeps_recurrences and is_recurrence(eqn):
            return "recurrences"
        if self._is_too_fine:
            return "too_fine"
        return "" if 0 < self._unrolled([eqn])[0] <= self.max_equations else "too_long"

    @cached_property
    def _least_volume(self) -> float:
        return least_volume(self.jaxpr)

    @cached_property
    def _keeps_recurrences(self) -> bool:
        return self.chooses and are_worth_keeping(self.jaxpr)

    @cached_property
    def _is_too_fine(self) -> bool:
        """Whether the whole program is, so that a loop and its gradient are treated alike."""
        equations, multiplications = self._unrolled(self.jaxpr.eqns)
        is_fine = equations > MANY_EQUATIONS and multiplications < LEAST_PER_EQUATION * equations
        return self.chooses and is_fine and not any(map(says_what_lies_where, scans(self.jaxpr)))

    def _unrolled(self, eqns: Sequence[Any]) -> tuple[int, int]:
        """The numbers of equations and of multiplications with all scans unrolled that can be planned."""
        equations = multiplications = 0
        for eqn in eqns:
            inner = [self._unrolled(jaxpr.eqns) for jaxpr in core.jaxprs_in_params(eqn.params)]
            times = eqn.params["length"] if eqn.primitive.name == SCAN and self.plans(eqn) else 1
            equations += times * max(sum(count for count, _ in inner), 1)
            multiplications += times * (sum(count for _, count in inner) + volume(eqn))
        return equations, multiplications


class _Stack:
    """Arrays of one shape that are stacked along a new first dim when the stack is used as a whole."""

    def __init__(self, parts: list[Any]):
        self.parts = parts
        self._array: Any = None

    def array(self) -> Any:
        if self._array is None:
            self._array = lax.concatenate([lax.expand_dims(_as_array(part), (0,)) for part in self.parts], 0)
        return self._array


def _as_array(value: Any) -> Any:
    return value.array() if isinstance(value, _Stack) else value


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Applies a function to an array, or to each part of a stack."""
    if isinstance(value, _Stack):
        return _Stack([function(_as_array(part)) for part in value.parts])
    return function(value)


class _Unroller:
    """Evaluates jaxprs; values are arrays or `_Stack`s of them."""

    def __init__(self, rule: _Rule):
        self._rule = rule
        # A slice that the forward and the backward loop both use is one value. The array is held so that its id stays.
        self._slices: dict[tuple[int, int], tuple[Any, Any]] = {}

    def evaluate(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else env[atom]

        for eqn in jaxpr.eqns:
            results = self._equation(eqn, [read(atom) for atom in eqn.invars])
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: Any, values: list[Any]) -> list[Any]:
        name = eqn.primitive.name
        if name == SCAN and self._rule.unrolls(eqn):
            return self._scan(eqn, values)
        inner = called(eqn)
        if inner is not None and self._has_unrolled(inner[0]):
            if name == REMAT and eqn.params["differentiated"]:
                values = _behind_barrier(values, eqn.params["prevent_cse"])
            return self.evaluate(*inner, values)
        with eqn.ctx.manager, explicit.scope(eqn):
            results = eqn.primitive.bind(*map(_as_array, values), **eqn.primitive.get_bind_params(eqn.params))
            return explicit.resharded(eqn, results if eqn.primitive.multiple_results else [results])

    def _scan(self, eqn: Any, values: list[Any]) -> list[Any]:
        params = eqn.params
        closed = _preventing_cse(params["jaxpr"])
        length, body = params["length"], self._body(closed)
        consts, carry, slices = scan_arguments(params, values)
        with_barriers = values_with_barriers(closed.jaxpr, len(consts), len(carry)) if length > 1 else ()
        rows: list[list[Any]] = [[]] * length
        for i in reversed(range(length)) if params["reverse"] else range(length):
            # Also before the first step, so that it is planned like the others.
            for position in with_barriers:
                carry[position] = _mapped(step_barrier, carry[position])
            results = body([*consts, *carry, *(self._part(value, i) for value in slices)])
            carry, rows[i] = results[: len(carry)], results[len(carry) :]
        return [*carry, *(_Stack(list(parts)) for parts in zip(*rows, strict=True))]

    def _body(self, closed: Any) -> Any:
        if self._has_unrolled(closed.jaxpr):
            return lambda values: self.evaluate(closed.jaxpr, closed.consts, values)
        # Traced and lowered once for all iterations.
        compiled = jax.jit(core.jaxpr_as_fun(closed))
        return lambda values: list(compiled(*map(_as_array, values)))

    def _part(self, value: Any, index: int) -> Any:
        if isinstance(value, _Stack):
            return value.parts[index]
        key = id(value), index
        if key not in self._slices:
            self._slices[key] = value, lax.index_in_dim(value, index, keepdims=False)
        return self._slices[key][1]

    def _has_unrolled(self, jaxpr: Any) -> bool:
        def unrolls(eqn: Any) -> bool:
            if eqn.primitive.name == SCAN:
                return self._rule.unrolls(eqn)
            inner = called(eqn)
            return explicit.is_written(eqn) or (inner is not None and self._has_unrolled(inner[0]))

        return any(map(unrolls, jaxpr.eqns))


def _preventing_cse(closed: Any) -> Any:
    """Returns a loop's body whose rematerialisations XLA does not merge with their originals.

    Inside loops `jax.checkpoint` is used with `prevent_cse=False`, since an iteration is a boundary for XLA; unrolled,
    it needs `prevent_cse=True`.
    """

    def rewrite(jaxpr: Any) -> Any:
        return jaxpr.replace(eqns=[equation(eqn) for eqn in jaxpr.eqns])

    def equation(eqn: Any) -> Any:
        params = {name: inside(value) for name, value in eqn.params.items()}
        if eqn.primitive.name == REMAT:
            params["prevent_cse"] = True
        return eqn.replace(params=params)

    def inside(value: Any) -> Any:
        if isinstance(value, core.ClosedJaxpr):
            return value.replace(jaxpr=rewrite(value.jaxpr))
        return rewrite(value) if isinstance(value, core.Jaxpr) else value

    if not any(eqn.primitive.name == REMAT for eqn in all_equations(closed.jaxpr)):
        return closed
    return inside(closed)


def _behind_barrier(values: list[Any], prevent_cse: bool | tuple[bool, ...]) -> list[Any]:
    """Returns the values behind a barrier, as `jax.checkpoint` does, so that ops on both sides are not merged."""
    wanted = (prevent_cse,) * len(values) if isinstance(prevent_cse, bool) else prevent_cse
    chosen = [value for value, is_wanted in zip(values, wanted, strict=True) if is_wanted]
    parts = [list(map(_as_array, value.parts)) if isinstance(value, _Stack) else value for value in chosen]
    if not parts:
        return values
    behind = iter(lax.optimization_barrier(parts))
    result = list(values)
    for i, (value, is_wanted) in enumerate(zip(values, wanted, strict=True)):
        if is_wanted:
            new = next(behind)
            result[i] = _Stack(new) if isinstance(value, _Stack) else new
    return result
