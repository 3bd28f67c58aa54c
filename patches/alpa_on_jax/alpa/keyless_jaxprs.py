"""Jaxprs in which random keys are their bits from one equation to the next.

Takes a closed jaxpr with typed keys, gives one with the same arguments and results, none of which may be a key. Alpa
cuts programs apart between equations and sends values from one part to another; of keys only the bits can be sent.
Invariant: the same values, by the same equations in the same order. An equation that works on keys makes them of bits
before, and bits of them after.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax._src import core, source_info_util
from jax.extend.core import ClosedJaxpr

from alpa_cfp.spmd.tracing.key_kinds import is_key, key_kind

_WRAP, _UNWRAP, _MARKER = "random_wrap", "random_unwrap", "pipeline_marker"


def without_keys(closed: ClosedJaxpr) -> ClosedJaxpr:
    """`closed` with bits in the place of keys; the same object where there are none."""
    if not any(is_key(var.aval) for eqn in closed.jaxpr.eqns for var in (*eqn.invars, *eqn.outvars)):
        return closed
    return jax.make_jaxpr(lambda *args: _evaluate(closed, args))(*closed.in_avals)


def _evaluate(closed: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    env = dict(zip(closed.jaxpr.invars, args, strict=True))
    for var, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        env[var] = _bits(value, var)

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else env[atom]

    for eqn in closed.jaxpr.eqns:
        context = source_info_util.user_context(eqn.source_info.traceback, name_stack=eqn.source_info.name_stack)
        with context, eqn.ctx.manager:
            results = _results(eqn, [read(atom) for atom in eqn.invars])
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in closed.jaxpr.outvars]


def _results(eqn: core.JaxprEqn, values: list[Any]) -> list[Any]:
    """The results of an equation, keys as bits, from values that are bits where it takes keys."""
    if eqn.primitive.name in (_WRAP, _UNWRAP):
        return values
    marks = eqn.primitive.name == _MARKER
    if not marks:
        values = [_key(value, atom) for value, atom in zip(values, eqn.invars, strict=True)]
    results = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
    given = results if eqn.primitive.multiple_results else [results]
    return given if marks else [_bits(value, var) for value, var in zip(given, eqn.outvars, strict=True)]


def _key(bits: Any, atom: Any) -> Any:
    """The keys that `bits` are, where `atom` has keys."""
    return jax.random.wrap_key_data(bits, impl=key_kind(atom.aval.dtype)) if is_key(atom.aval) else bits


def _bits(keys: Any, atom: Any) -> Any:
    return jax.random.key_data(keys) if is_key(atom.aval) else keys
