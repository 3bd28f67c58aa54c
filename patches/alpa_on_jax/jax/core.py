"""Names that left `jax.core` for `jax.extend.core` or for nowhere, with the signatures that alpa calls.

Invariant: a jaxpr that alpa builds with `Jaxpr(constvars, invars, outvars, eqns)` carries the effects of its
equations and debug information, which current JAX expects and JAX 0.3 did not know. It is an ordinary JAX jaxpr.
"""

from collections.abc import Callable, Sequence
from typing import Any

from jax._src import core as _core
from jax._src import effects as _effects
from jax._src.core import (
    DropVar,
    JaxprEqn,
    Literal,
    Primitive,
    Var,
    get_opaque_trace_state,
    jaxpr_as_fun,
    new_jaxpr_eqn,
    no_effects,
    pytype_aval_mappings,
    subjaxprs,
    typeof,
)
from jax._src.interpreters import partial_eval as _pe
from jax._src.linear_util import DebugInfo as _DebugInfo
from jax.extend.core import ClosedJaxpr

__all__ = [
    "ClosedJaxpr",
    "DropVar",
    "Jaxpr",
    "JaxprEqn",
    "Literal",
    "Primitive",
    "Var",
    "gensym",
    "get_aval",
    "get_opaque_trace_state",
    "jaxpr_as_fun",
    "named_call_p",
    "new_jaxpr_eqn",
    "no_effects",
    "ordered_effects",
    "pytype_aval_mappings",
    "raise_to_shaped",
    "subjaxprs",
]

# JAX 0.10 still has a deprecated `gensym` that takes no arguments; this one can be called that way too.
WIDENED = ("gensym",)

# Alpa changes single fields of an equation as if it were a named tuple.
ADDED_TO_CLASSES = {JaxprEqn: {"_replace": JaxprEqn.replace}}

ordered_effects = _effects.ordered_effects
get_aval = typeof


class _JaxprType(type):
    """Lets `isinstance(x, Jaxpr)` mean JAX's own class."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _core.Jaxpr)


class Jaxpr(metaclass=_JaxprType):
    """Makes a JAX jaxpr as JAX 0.3 did: effects and debug information may be left out."""

    def __new__(
        cls,
        constvars: Sequence[Var],
        invars: Sequence[Var],
        outvars: Sequence[_core.Atom],
        eqns: Sequence[JaxprEqn],
        effects: _core.Effects | None = None,
        debug_info: _DebugInfo | None = None,
    ) -> _core.Jaxpr:
        if effects is None:
            effects = _pe.make_jaxpr_effects(constvars, invars, outvars, eqns)
        if debug_info is None:
            debug_info = _DebugInfo("parallelize", "<jaxpr made by alpa>", None, None)
        return _core.Jaxpr(constvars, invars, outvars, eqns, effects, debug_info)


def gensym(jaxprs: Sequence[Any] | None = None, suffix: str = "") -> Callable[[_core.AbstractValue], Var]:
    """A function from an abstract value to a new variable. Variables have no names any more, so `jaxprs` and
    `suffix`, with which names were kept apart, are not needed."""
    return Var


def raise_to_shaped(aval: _core.AbstractValue, weak_type: bool | None = None) -> _core.AbstractValue:
    """The abstract value without its concrete value; abstract values hold none any more."""
    return aval if weak_type is None else aval.update(weak_type=weak_type)


class _InlinedCall(Primitive):
    """A call equation that alpa writes into jaxprs; evaluating it evaluates the called jaxpr in its place."""

    multiple_results = True

    def bind(self, *args: Any, call_jaxpr: _core.Jaxpr, name: str) -> list[Any]:
        return _core.eval_jaxpr(call_jaxpr, (), *args)


named_call_p = _InlinedCall("named_call")
