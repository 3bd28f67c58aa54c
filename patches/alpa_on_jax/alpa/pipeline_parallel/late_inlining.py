"""Calls that are to be inlined, inlined before alpa looks at a program's equations.

Takes a jaxpr; gives one in which each `jax.jit(..., inline=True)` has given way to the equations of what it calls. Up
to JAX 0.10 tracing did so. Today they are inlined when the program is lowered, which is too late: alpa puts each
equation of the optimizer on the meshes that need one of its results, and optax's bias correction of all of Adam's
moments is one call. Invariant: inputs stay the same variables, and what is computed is the same.
"""

from collections.abc import Callable

from jax._src import core
from jax.extend.core import ClosedJaxpr

# What an equation calls, if it is to be inlined.
Called = Callable[[core.JaxprEqn], core.Jaxpr | None]


def late(eqn: core.JaxprEqn) -> core.Jaxpr | None:
    """Returns what an equation calls if it is to be inlined when the program is lowered."""
    # An enumeration since JAX 0.11, and before a boolean, which tracing has done with.
    is_late = getattr(eqn.params.get("inline"), "name", "") == "JAX_LATE"
    return eqn.params["jaxpr"].jaxpr if is_late and not eqn.params["jaxpr"].consts else None


def inlined(closed: ClosedJaxpr, called: Called = late) -> ClosedJaxpr:
    """`closed` without the calls that `called` tells; itself where it has none."""
    if not any(called(eqn) is not None for eqn in closed.jaxpr.eqns):
        return closed
    return closed.replace(jaxpr=_inlined(closed.jaxpr, called))


def _inlined(jaxpr: core.Jaxpr, called: Called) -> core.Jaxpr:
    known: dict[core.Var, core.Atom] = {}

    def read(atom: core.Atom) -> core.Atom:
        return known.get(atom, atom) if isinstance(atom, core.Var) else atom

    eqns: list[core.JaxprEqn] = []
    for eqn in jaxpr.eqns:
        used, body = eqn.replace(invars=[read(atom) for atom in eqn.invars]), called(eqn)
        if body is None:
            eqns.append(used)
            continue
        results = _into(eqns, _inlined(body, called), used.invars)
        known.update(zip(used.outvars, results, strict=True))
    return jaxpr.replace(eqns=eqns, outvars=[read(atom) for atom in jaxpr.outvars])


def _into(eqns: list[core.JaxprEqn], called: core.Jaxpr, arguments: list[core.Atom]) -> list[core.Atom]:
    """Append the equations of what is called, with variables of their own; give its results."""
    known: dict[core.Var, core.Atom] = dict(zip(called.invars, arguments, strict=True))
    new: Callable[[core.AbstractValue], core.Var] = core.gensym()

    def read(atom: core.Atom) -> core.Atom:
        return known[atom] if isinstance(atom, core.Var) else atom

    for eqn in called.eqns:
        outvars = [out if isinstance(out, core.DropVar) else new(out.aval) for out in eqn.outvars]
        eqns.append(eqn.replace(invars=[read(atom) for atom in eqn.invars], outvars=outvars))
        known.update(zip(eqn.outvars, outvars, strict=True))
    return [read(atom) for atom in called.outvars]
