"""Rewrites the program of gradient accumulation where a value of micro-batches is not to be averaged.

Takes the jaxpr that alpa makes, in which each value that passes the gradients' mark is added to an accumulator and
divided by the number of micro-batches; gives one in which those that are no means are kept for all micro-batches, the
latest last, and combined when all are there. Such an accumulator holds a row for each micro-batch, of which the first
gives way to a new one. Invariant: the jaxpr has the same arguments and results; means are accumulated as by alpa.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax._src import core
from jax.extend.core import ClosedJaxpr

from alpa_on_jax.alpa.micro_batch_values import Combined


def combine(closed: ClosedJaxpr, combined: Sequence[Combined], num_micro_batches: int) -> ClosedJaxpr:
    """The program of gradient accumulation `closed`, with its values combined as they are to be.

    Args:
        closed: What alpa's `add_gradient_accumulation` gives.
        combined: For each value that passes the mark, how it is combined.
        num_micro_batches: How many there are.
    """
    if all(each.is_mean for each in combined):
        return closed
    return _Rewriting(closed.jaxpr, combined, num_micro_batches).rewritten(closed.consts)


class _Rewriting:
    """The parts of alpa's program, and what takes their place.

    It is: the start of a stage, the equations of one micro-batch, an addition for each value, the end of the stage, the
    start of the next one, a division for each value, and the rest of the step.
    """

    def __init__(self, jaxpr: core.Jaxpr, combined: Sequence[Combined], num_micro_batches: int) -> None:
        self.jaxpr, self.combined, self.count = jaxpr, combined, num_micro_batches
        starts = [i for i, eqn in enumerate(jaxpr.eqns) if eqn.params.get("mark_type") == "start"]
        ends = [i for i, eqn in enumerate(jaxpr.eqns) if eqn.params.get("mark_type") == "end"]
        self.starts, self.end, values = starts, ends[0], len(combined)
        self.additions = range(self.end - values, self.end)
        self.divisions = range(starts[1] + 1, starts[1] + 1 + values)
        # What stands for the accumulators of values that are no means: alpa's variable, and the one of all rows.
        self.rows: dict[Any, Any] = {}
        # Alpa writes its divisions with the last value first.
        self.divided = dict(zip(reversed(range(values)), self.divisions, strict=True))

    def rewritten(self, consts: Sequence[Any]) -> ClosedJaxpr:
        """The program."""
        jaxpr, first, last = self.jaxpr, self.jaxpr.eqns[self.starts[0]], self.jaxpr.eqns[self.end]
        accumulated = {number for number, each in enumerate(self.combined) if not each.is_mean}
        replaced: dict[int, list[core.JaxprEqn]] = {}
        for number in accumulated:
            added = jaxpr.eqns[self.additions[number]]
            old, new = added.invars
            position = list[Any](first.outvars).index(old)
            outer = first.invars[position]
            handed = last.outvars[number]
            inner = self._of_rows(old)
            for var in (outer, added.outvars[0], handed):
                self._of_rows(var)
            replaced[self.additions[number]] = _inlined(
                lambda rows, value: lax.concatenate([rows[1:], value[None]], 0),
                [inner, new],
                self.rows[added.outvars[0]],
            )
            divided = jaxpr.eqns[self.divided[number]].outvars[0]
            stack = core.Var(inner.aval)
            self.rows[divided] = stack
            replaced[self.divided[number]] = _inlined(self.combined[number].of_all, [stack], divided)
        eqns: list[core.JaxprEqn] = []
        for position, eqn in enumerate(jaxpr.eqns):
            if position in replaced:
                eqns += replaced[position]
            elif position in (*self.starts, self.end):
                # Only at the borders of stages do accumulators have names of their own.
                eqns.append(
                    eqn.replace(
                        invars=[self._row(atom) for atom in eqn.invars], outvars=[self._row(var) for var in eqn.outvars]
                    )
                )
            else:
                eqns.append(eqn)
        invars = [self._row(var) for var in jaxpr.invars]
        return ClosedJaxpr(jaxpr.replace(invars=invars, eqns=eqns), consts)

    def _of_rows(self, var: Any) -> Any:
        """A variable for all rows of a value, in the place of alpa's."""
        if var not in self.rows:
            self.rows[var] = core.Var(core.ShapedArray((self.count, *var.aval.shape), var.aval.dtype))
        return self.rows[var]

    def _row(self, atom: Any) -> Any:
        return atom if isinstance(atom, core.Literal) else self.rows.get(atom, atom)


def _inlined(function: Callable[..., Any], arguments: Sequence[Any], result: Any) -> list[core.JaxprEqn]:
    """The equations by which `function` makes the variable `result` of others."""
    with jax.disable_jit():
        traced = jax.make_jaxpr(lambda *args: jnp.copy(function(*args)))(*(atom.aval for atom in arguments))
    names: dict[Any, Any] = dict(zip(traced.jaxpr.invars, arguments, strict=True))
    names |= {var: core.Var(var.aval) for eqn in traced.jaxpr.eqns for var in eqn.outvars}
    names[traced.jaxpr.outvars[0]] = result
    return [
        eqn.replace(
            invars=[atom if isinstance(atom, core.Literal) else names[atom] for atom in eqn.invars],
            outvars=[names[var] for var in eqn.outvars],
        )
        for eqn in traced.jaxpr.eqns
    ]
