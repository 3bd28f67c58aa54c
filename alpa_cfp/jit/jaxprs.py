"""The equations of jaxprs and of the jaxprs that they call.

Uses `jax.extend.core`, the names of JAX's primitives, and the parameters of `scan`, tested with 0.10.2, 0.11.2 and
0.12.0.1.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend import core

SCAN, WHILE, REMAT = "scan", "while", "remat2"
# Calls that are equal to their callee once differentiation is done.
_CALLS = frozenset({"jit", "pjit", "closed_call", "core_call", "eval_jaxpr", "custom_jvp_call", "custom_vjp_call"})


def all_equations(jaxpr: Any) -> Iterator[Any]:
    """Yields every equation of a jaxpr, each before those that it calls."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in core.jaxprs_in_params(eqn.params):
            yield from all_equations(inner)


def called(eqn: Any) -> tuple[Any, Sequence[Any]] | None:
    """Returns the jaxpr that an equation calls, with its constants; None if the equation is no plain call."""
    if eqn.primitive.name not in _CALLS and eqn.primitive.name != REMAT:
        return None
    for value in eqn.params.values():
        if isinstance(value, core.ClosedJaxpr):
            return value.jaxpr, value.consts
        if isinstance(value, core.Jaxpr):
            return value, ()
    return None


def scan_arguments(params: dict[str, Any], values: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Returns the constants, the first carry, and the stacked arrays among the operands of a scan.

    Args:
        params: The parameters of its equation.
        values: One for each operand, or for each parameter of its body.
    """
    if "ft_in" in params:  # 0.11
        consts, carry, slices = params["ft_in"].update(values).unpack()
        return list(consts), list(carry), list(slices)
    first, second = params["num_consts"], params["num_consts"] + params["num_carry"]
    return values[:first], values[first:second], values[second:]
