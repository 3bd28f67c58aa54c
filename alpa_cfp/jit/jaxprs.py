"""The equations of jaxprs, inner ones too, and which of them are calls.

Of JAX's insides `jax.extend.core` and the names of primitives are used; tested with 0.10.2 and 0.11.2.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend import core

SCAN, WHILE, REMAT = "scan", "while", "remat2"
# Calls that are the same as what they call once nothing is differentiated any more.
_CALLS = frozenset({"jit", "pjit", "closed_call", "core_call", "eval_jaxpr", "custom_jvp_call", "custom_vjp_call"})


def inner_jaxprs(eqn: Any) -> Iterator[Any]:
    """The jaxprs that an equation calls, without their constants."""
    for value in eqn.params.values():
        for each in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(each, core.ClosedJaxpr):
                yield each.jaxpr
            elif isinstance(each, core.Jaxpr):
                yield each


def all_equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation of a jaxpr, each before those that it calls."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in inner_jaxprs(eqn):
            yield from all_equations(inner)


def called(eqn: Any) -> tuple[Any, Sequence[Any]] | None:
    """The jaxpr in whose place an equation stands, with its constants; None where there is more to the equation."""
    if eqn.primitive.name not in _CALLS and eqn.primitive.name != REMAT:
        return None
    for value in eqn.params.values():
        if isinstance(value, core.ClosedJaxpr):
            return value.jaxpr, value.consts
        if isinstance(value, core.Jaxpr):
            return value, ()
    return None
