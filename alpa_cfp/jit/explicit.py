"""Programs in JAX's Explicit mode, where arrays have shardings as a part of their types.

Takes equations of such a program; says which of its shardings somebody has written: those of `reshard`, and the
`out_sharding` of a contraction. JAX derives all others from these and from the types of arguments, and writes them
behind each op that it lowers: the planner is free to choose them. Invariant: what is written keeps its name through
lowering, by which `spmd.shardings.constraints.drop_derived` knows it.

Uses names of JAX's primitives and of their parameters, and how it names what differentiation makes; tested with 0.10.2
and 0.11.2.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import jax
from jax.sharding import AxisType

from alpa_cfp.jit.jaxprs import all_equations
from alpa_cfp.spmd.shardings.constraints import DERIVED

_RESHARD = "reshard"
_CONTRACTIONS = frozenset({"dot_general", "ragged_dot_general", "conv_general_dilated"})
_TRANSPOSED = "transpose("


def is_explicit(closed: Any) -> bool:
    """Whether a function was traced in Explicit mode, or parts of it."""
    return any(is_explicit_type(var.aval) for eqn in all_equations(closed.jaxpr) for var in eqn.outvars)


def is_explicit_type(aval: Any) -> bool:
    """Whether the type of a value has a sharding over axes of Explicit mode."""
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    return mesh is not None and AxisType.Explicit in mesh.axis_types


def is_written(eqn: Any) -> bool:
    """Whether somebody has written the sharding of a contraction's result."""
    if eqn.primitive.name not in _CONTRACTIONS or _is_transposed(eqn):
        return False
    return eqn.params.get("out_sharding") is not None


def scope(eqn: Any) -> Any:
    """The context in which an equation is evaluated again.

    What differentiation makes of a `reshard` takes a gradient back to where the value came from: it is derived, too.
    """
    is_derived = eqn.primitive.name == _RESHARD and _is_transposed(eqn)
    return jax.named_scope(DERIVED) if is_derived else nullcontext()


def resharded(eqn: Any, results: Sequence[Any]) -> list[Any]:
    """The results of an equation; that of a contraction behind a `reshard` to the sharding that is written."""
    if not is_written(eqn):
        return list(results)
    return [jax.sharding.reshard(result, eqn.params["out_sharding"]) for result in results]


def _is_transposed(eqn: Any) -> bool:
    return _TRANSPOSED in str(eqn.source_info.name_stack)
