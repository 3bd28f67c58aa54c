"""Jaxprs without calls back into Python, where a program can do without them.

Takes a closed jaxpr; gives one with the same arguments and results that calls back less, and a sentence on each kind of
change. A planned program runs on all devices of a mesh, in other processes too, where the Python functions are not. A
callback whose results nothing uses (`jax.debug.print`, `io_callback` without results) is left out. A check
(`equinox.error_if`: a condition with a branch that only raises, beside one that hands its operands on) becomes a
selection: values that fail it are NaN, the largest integer, or True, as with equinox on TPUs, which raise no errors
either. Invariant: where a result of Python is used in any other way, the call stays, and is then refused
(`HloModule.from_stablehlo`): no value is made up.

Of JAX's insides this uses `dce_jaxpr`, `jaxprs_in_params`, how equations are bound, the parameters of `cond`, and names
of effects; tested with 0.10.2, 0.11.2 and 0.12.0.1.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core, source_info_util
from jax._src.interpreters.partial_eval import dce_jaxpr
from jax.extend.core import ClosedJaxpr

_CALLBACKS = frozenset({"debug_callback", "debug_print", "io_callback", "pure_callback"})
# Of equations around callbacks: what they may do besides giving results is to call back.
_EFFECTS = frozenset({"DebugEffect", "OrderedDebugEffect", "IOEffect", "OrderedIOEffect"})
_COND = "cond"
# What `vmap` makes of results that are the same for the whole batch.
_MOVES = frozenset({"broadcast_in_dim", "reshape", "squeeze", "transpose"})


def without_callbacks(closed: ClosedJaxpr) -> tuple[ClosedJaxpr, list[str]]:
    """`closed` with fewer callbacks, and a sentence for each kind of change; the same object where it has none."""
    if not _calls_back(closed.jaxpr):
        return closed, []
    rewriter = _Rewriter()
    rewritten = rewriter.closed(_without_dead(closed))
    return rewritten, rewriter.warnings()


class _Rewriter:
    """Rewrites jaxprs, and records the places of what it changed, each once."""

    def __init__(self) -> None:
        self._left_out: dict[str, None] = {}
        self._checks: dict[str, None] = {}

    def warnings(self) -> list[str]:
        """A sentence for each kind of change."""
        warnings = [_left_out_warning(", ".join(self._left_out))] if self._left_out else []
        return [*warnings, _checks_warning(", ".join(self._checks))] if self._checks else warnings

    def closed(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """The same function with fewer callbacks."""
        if not _calls_back(closed.jaxpr):
            return closed
        return jax.make_jaxpr(lambda *args: self._evaluate(closed, args))(*closed.in_avals)

    def _evaluate(self, closed: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
        jaxpr = closed.jaxpr
        env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *args), strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else env[atom]

        is_live = _live(jaxpr)
        for eqn, live in zip(jaxpr.eqns, is_live, strict=True):
            if not live:
                self._left_out.update(dict.fromkeys(_places(eqn)))
                continue
            context = source_info_util.user_context(eqn.source_info.traceback, name_stack=eqn.source_info.name_stack)
            with context, eqn.ctx.manager:
                results = self._results(eqn, [read(atom) for atom in eqn.invars])
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _results(self, eqn: core.JaxprEqn, values: list[Any]) -> list[Any]:
        checked = _checked(eqn)
        if checked is not None:
            failing, operands = checked
            self._checks[next(_places(eqn))] = None
            return [_or_invalid(values[0] == failing, values[1 + operand]) for operand in operands]
        params = {name: self._parameter(value) for name, value in eqn.params.items()}
        results = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(params))
        return list(results) if eqn.primitive.multiple_results else [results]

    def _parameter(self, value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return self.closed(value)
        if isinstance(value, core.Jaxpr):
            return self.closed(ClosedJaxpr(value, ())).jaxpr
        # Not a named tuple, such as the dimension numbers of a scatter: it holds no programs.
        if type(value) is tuple:
            return tuple(map(self._parameter, value))
        return value


def _left_out_warning(places: str) -> str:
    return f"calls back into Python whose results nothing uses are left out of the program: {places}"


def _checks_warning(places: str) -> str:
    return (
        "checks that call back into Python raise no error; what fails them becomes NaN (an integer the largest of its "
        f"type, a truth value True): {places}"
    )


def _without_dead(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Without what has neither effects nor results that are used, inside of loops and calls too."""
    jaxpr = closed.jaxpr
    smaller, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    return ClosedJaxpr(smaller, closed.consts)


def _live(jaxpr: core.Jaxpr) -> list[bool]:
    """For each equation whether it does more than call back: another effect, or a result that such a one uses."""
    used = {atom for atom in jaxpr.outvars if isinstance(atom, core.Var)}
    live: list[bool] = []
    for eqn in reversed(jaxpr.eqns):
        acts = any(type(effect).__name__ not in _EFFECTS for effect in eqn.effects)
        live.append(acts or not used.isdisjoint(eqn.outvars))
        if live[-1]:
            used.update(atom for atom in eqn.invars if isinstance(atom, core.Var))
    return live[::-1]


def _checked(eqn: core.JaxprEqn) -> tuple[Any, list[int]] | None:
    """If an equation is a check: at which index it fails, and for each result the operand that it is otherwise."""
    if eqn.primitive.name != _COND or len(eqn.params["branches"]) != 2:
        return None
    branches = [branch.jaxpr for branch in eqn.params["branches"]]
    fails = [_is_all_from_callbacks(branch) for branch in branches]
    if fails == [True, False] or fails == [False, True]:
        passing = branches[fails.index(False)]
        if not passing.eqns and all(atom in passing.invars for atom in passing.outvars):
            index: Any = eqn.invars[0].aval
            return np.asarray(fails.index(True), index.dtype), [passing.invars.index(atom) for atom in passing.outvars]
    return None


def _is_all_from_callbacks(jaxpr: core.Jaxpr) -> bool:
    """Whether each result is one of a callback's, with nothing computed of it."""
    given: set[Any] = set()
    for eqn in jaxpr.eqns:
        moves = eqn.primitive.name in _MOVES and eqn.invars[0] in given
        if moves or eqn.primitive.name in _CALLBACKS:
            given.update(eqn.outvars)
    return bool(jaxpr.outvars) and all(isinstance(atom, core.Var) and atom in given for atom in jaxpr.outvars)


def _or_invalid(fails: Any, value: Any) -> Any:
    """`value`, or a value of its type and shape that cannot be meant; `fails` is a truth value."""
    aval = core.typeof(value)
    if jnp.issubdtype(aval.dtype, jnp.inexact):
        invalid: Any = float("nan")
    elif jnp.issubdtype(aval.dtype, jnp.integer):
        invalid = jnp.iinfo(aval.dtype).max
    else:
        invalid = True
    # A Python number would make a weak type of a strong one, or be too large for the default integer.
    return jnp.where(fails, invalid if aval.weak_type else jnp.asarray(invalid, aval.dtype), value)


def _calls_back(jaxpr: core.Jaxpr) -> bool:
    return any(
        eqn.primitive.name in _CALLBACKS or any(map(_calls_back, core.jaxprs_in_params(eqn.params)))
        for eqn in jaxpr.eqns
    )


def _places(eqn: core.JaxprEqn) -> Iterator[str]:
    """The callbacks in an equation with the user's lines: "debug_print (step.py:12 (loss))"."""
    if eqn.primitive.name in _CALLBACKS:
        yield f"{eqn.primitive.name} ({source_info_util.summarize(eqn.source_info)})"
    for jaxpr in core.jaxprs_in_params(eqn.params):
        for inner in jaxpr.eqns:
            yield from _places(inner)
