"""Replacements in `alpa.util` of what traces functions and builds jaxprs. `apply` is called for that module.

Takes a wrapped function with the abstract values of its arguments and gives back the closed jaxpr of one micro-batch,
traced with alpa's stateful random functions (`monkey_patch`) and without nested jits. Equations are built with the
effects and the context that current JAX expects them to carry.

Invariant: whatever happens while tracing, `jax.random`, `jax.numpy.array` and JAX's Literal are afterwards what they
were before.
"""

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core
from jax._src.linear_util import Store, WrappedFun
from jax._src.source_info_util import SourceInfo
from jax.api_util import shaped_abstractify
from jax.extend.core import ClosedJaxpr

from alpa_cfp.spmd.tracing.host_callbacks import without_callbacks
from alpa_on_jax import errors
from alpa_on_jax.alpa.keyless_jaxprs import without_keys
from alpa_on_jax.alpa.micro_batch_values import Combined, How, how_to_combine, may_be_no_mean
from alpa_on_jax.jax.interpreters.partial_eval import trace_to_jaxpr_final
from alpa_on_jax.replacing import replace

logger = logging.getLogger(__name__)


def apply(module: ModuleType) -> None:
    """Replace the tracing functions of `alpa.util`."""

    def trace_jaxpr_with_micro_batch(
        fun: WrappedFun,
        batch_invars: Sequence[bool],
        num_micro_batches: int,
        raw_avals: Sequence[core.ShapedArray],
        batch_dim: int = 0,
    ) -> tuple[ClosedJaxpr, int | None]:
        """Trace `fun` at one micro-batch.

        Args:
            batch_invars: which arguments are split into micro-batches, along their first dim.

        Returns:
            The jaxpr, and the length of a micro-batch (None if no argument is split).

        Raises:
            errors.MicroBatchError: an argument cannot be split, or two are of different length.
            errors.NotJittableError: `fun` needs the value of an array to go on.
        """
        if batch_dim != 0:
            raise errors.MicroBatchError(f"alpa splits arrays along dim 0 only, not along dim {batch_dim}")
        avals, micro_batch_size = _micro_batch_avals(batch_invars, num_micro_batches, raw_avals)
        closed = trace(_with_its_f(fun), avals)
        if num_micro_batches > 1 and micro_batch_size:
            _traced[closed] = Traced(tuple(batch_invars), twice(fun, avals, batch_invars, closed))
        return closed, micro_batch_size

    def twice(
        fun: WrappedFun, avals: Sequence[core.ShapedArray], is_batch: Sequence[bool], closed: ClosedJaxpr
    ) -> ClosedJaxpr | None:
        """`fun` with a micro-batch twice as large, where that tells something: now, since layers depend on the time."""
        values = [atom for eqn in closed.jaxpr.eqns if eqn.params.get("mark_type") == "grad" for atom in eqn.invars]
        if not may_be_no_mean(closed.jaxpr, values, is_batch):
            return None
        larger = [
            aval.update(shape=(2 * aval.shape[0], *aval.shape[1:])) if batch else aval
            for aval, batch in zip(avals, is_batch, strict=True)
        ]
        try:
            return trace(_with_its_f(fun, fresh=True), larger)
        except Exception:  # whatever a user's function says of another batch
            logger.debug("the function cannot be traced with another batch size", exc_info=True)
            return None

    def trace(fun: WrappedFun, avals: Sequence[core.ShapedArray]) -> ClosedJaxpr:
        try:
            module.monkey_patch_random()
            monkey_patch_jaxarray()
            with jax.disable_jit():
                jaxpr, _, consts = trace_to_jaxpr_final(fun, avals)
                closed, left_out = without_callbacks(ClosedJaxpr(jaxpr, consts))
                for sentence in left_out:
                    logger.warning("%s: %s", fun.__name__, sentence)
                return without_keys(closed)
        finally:
            restore_jaxarray()
            module.restore_random()

    replace(
        module,
        abstractify_with_aval,
        clone_jaxpr_eqn,
        monkey_patch_jaxarray,
        new_jaxpr_eqn,
        restore_jaxarray,
        trace_jaxpr_with_micro_batch,
    )


@dataclass(frozen=True)
class Traced:
    """Facts about a jaxpr of one micro-batch.

    Attributes:
        is_batch: Which of its arguments are split.
        twice: The jaxpr of one twice as large; None where it is of no use, or cannot be had.
    """

    is_batch: tuple[bool, ...]
    twice: ClosedJaxpr | None


# Of the jaxprs of micro-batches that are being compiled.
_traced: WeakKeyDictionary[ClosedJaxpr, Traced] = WeakKeyDictionary()


def values_of_micro_batches(closed: ClosedJaxpr, values: Sequence[Any]) -> list[Combined]:
    """How each of some variables of a traced micro-batch is combined with those of the others.

    Raises:
        errors.MicroBatchError: one can be neither averaged nor combined in another way that is known.
    """
    traced = _traced.get(closed)
    if traced is None:  # there is one micro-batch, which has the value of the batch
        return [Combined(How.MEAN)] * len(values)
    twice = None if traced.twice is None else traced.twice.jaxpr
    return how_to_combine(closed.jaxpr, twice, values, traced.is_batch)


def _with_its_f(fun: WrappedFun, *, fresh: bool = False) -> WrappedFun:
    """`fun` as its attributes say; with `fresh`, what tracing learns of its results is not kept.

    Alpa sets `fun.f` to make layers of a function that is not differentiated, but JAX calls what was made, in the
    beginning, of the function that was there then.
    """
    plain = WrappedFun(fun.f, functools.partial(fun.f, **dict(fun.params)), (), (), fun.params, None, fun.debug_info)
    for (transform, arguments), store in zip(reversed(fun.transforms), reversed(fun.stores), strict=True):
        plain = plain.wrap(transform, arguments, Store() if fresh and store is not None else store)
    return plain


def _micro_batch_avals(
    batch_invars: Sequence[bool], num_micro_batches: int, raw_avals: Sequence[core.ShapedArray]
) -> tuple[list[core.ShapedArray], int | None]:
    if not isinstance(num_micro_batches, (int, np.integer)) or num_micro_batches < 1:
        raise errors.MicroBatchError(
            f"num_micro_batches is {num_micro_batches!r}, but must be a whole number, at least 1"
        )
    lengths = sorted({aval.shape[0] for aval, is_batch in zip(raw_avals, batch_invars, strict=True) if is_batch})
    if len(lengths) > 1:
        raise errors.MicroBatchError(
            f"The arrays of a batch must have the same first dim to be split into micro-batches, but it is {lengths}. "
            "Arguments that are no batch must not be in batch_argnums"
        )
    if not lengths:
        return list(raw_avals), None
    size, rest = divmod(lengths[0], num_micro_batches)
    if rest:
        raise errors.MicroBatchError(
            f"num_micro_batches={num_micro_batches} does not divide the batch size {lengths[0]}"
        )
    avals = [
        aval.update(shape=(size, *aval.shape[1:])) if is_batch else aval
        for aval, is_batch in zip(raw_avals, batch_invars, strict=True)
    ]
    return avals, size


def abstractify_with_aval(x: Any) -> core.ShapedArray:
    """The shape and dtype of an argument, without the sharding that it has by chance.

    A step's result is on the mesh, its first argument was not, and both must find the same compiled program.
    """
    # Every leaf of a training state comes here in every call, so arrays are spared shaped_abstractify's way round.
    if isinstance(x, jax.Array):
        return _without_sharding(x.aval)
    return _without_sharding(x if isinstance(x, core.AbstractValue) else shaped_abstractify(x))


# Abstract values are interned, so that the cache looks at their identity.
@functools.lru_cache(maxsize=16384)
def _without_sharding(aval: Any) -> core.ShapedArray:
    return core.ShapedArray(aval.shape, aval.dtype, weak_type=aval.weak_type)


_jnp_array = jnp.array
_literal_hash = core.Literal.__hash__


def monkey_patch_jaxarray() -> None:
    """Let `jnp.array` not copy, and literals be hashed by value, while alpa traces."""
    jnp.array = _array_without_copy
    core.Literal.__hash__ = lambda self: self.hash  # pyright: ignore[reportAttributeAccessIssue]


def restore_jaxarray() -> None:
    """Undo `monkey_patch_jaxarray`."""
    jnp.array = _jnp_array
    core.Literal.__hash__ = _literal_hash


def _array_without_copy(object: Any, dtype: Any = None, copy: bool | None = True, **options: Any) -> jax.Array:
    return _jnp_array(object, dtype, copy=False, **options)


def new_jaxpr_eqn(
    invars: Sequence[core.Atom],
    outvars: Sequence[core.Var],
    primitive: core.Primitive,
    params: dict[str, Any],
    effects: core.Effects | None = None,
    source_info: SourceInfo | None = None,
) -> core.JaxprEqn:
    """Create a new jaxpr equation; its effects, unless given, are those of the jaxprs that it calls."""
    if not effects:
        effects = core.join_effects(*(jaxpr.effects for jaxpr in core.jaxprs_in_params(params)))
    return core.new_jaxpr_eqn(list(invars), list(outvars), primitive, params, effects, source_info)


def clone_jaxpr_eqn(
    eqn: core.JaxprEqn,
    invars: Sequence[core.Atom] | None = None,
    outvars: Sequence[core.Var] | None = None,
    primitive: core.Primitive | None = None,
    params: dict[str, Any] | None = None,
    effects: core.Effects | None = None,
    source_info: SourceInfo | None = None,
) -> core.JaxprEqn:
    """A copy of `eqn`, of which what is given (and not empty) takes the place of the old."""
    return eqn.replace(
        invars=list(invars or eqn.invars),
        outvars=list(outvars or eqn.outvars),
        primitive=primitive or eqn.primitive,
        params=dict(params or eqn.params),
        effects=effects or eqn.effects,
        source_info=source_info or eqn.source_info,
    )
