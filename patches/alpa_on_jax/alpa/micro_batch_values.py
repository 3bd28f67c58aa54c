"""How values of micro-batches become values of the batch: what `alpa.grad` and `alpa.value_and_grad` give back.

Takes the jaxpr of one micro-batch, and one of a micro-batch twice as large, from which it is seen which dims grow with
the batch; gives for each value that passes the gradients' mark a `Combined`. Alpa averages all of them. That is right
for gradients and means; counts come out rounded down, predictions and maxima as averages. Here only floats that are
not known to be something else are averaged. Invariant: a way of combining is given only where it gives, for a function
of samples one by one, what the function gives for the whole batch.
"""

import enum
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax._src import core, source_info_util

from alpa_on_jax import errors

logger = logging.getLogger(__name__)


class How(enum.Enum):
    """How the values of all micro-batches are combined."""

    MEAN = "averaged"
    SAME = "the same in each"
    JOINED = "joined along a dim"
    TOTAL = "added up"
    MAXIMUM = "the largest"
    MINIMUM = "the smallest"
    ALL = "whether all are"
    ANY = "whether any is"


@dataclass(frozen=True, slots=True)
class Combined:
    """How one value is combined.

    Attributes:
        how: What is done.
        dim: Along which dim values are joined.
    """

    how: How
    dim: int = 0

    @property
    def is_mean(self) -> bool:
        """Whether alpa's own way will do."""
        return self.how is How.MEAN

    def of_all(self, stack: Any) -> Any:
        """The value of the batch, of those of all micro-batches in order, along a new first dim."""
        if self.how is How.JOINED:
            moved = jnp.moveaxis(stack, 0, self.dim)
            shape = (*moved.shape[: self.dim], -1, *moved.shape[self.dim + 2 :])
            return moved.reshape(shape)
        return _REDUCTIONS[self.how](stack)


_REDUCTIONS: dict[How, Callable[[Any], Any]] = {
    How.SAME: lambda stack: stack[0],
    How.TOTAL: lambda stack: jnp.sum(stack, 0, dtype=stack.dtype),
    How.MAXIMUM: lambda stack: jnp.max(stack, 0),
    How.MINIMUM: lambda stack: jnp.min(stack, 0),
    How.ALL: lambda stack: jnp.all(stack, 0),
    How.ANY: lambda stack: jnp.any(stack, 0),
}
# Reductions over the batch.
_REDUCE = {
    "reduce_sum": How.TOTAL,
    "reduce_max": How.MAXIMUM,
    "reduce_min": How.MINIMUM,
    "reduce_and": How.ALL,
    "reduce_or": How.ANY,
}
# What moves elements, so that it does not matter whether reductions are made before or after.
_MOVING = {"reshape", "squeeze", "broadcast_in_dim", "transpose", "copy", "copy_p", "stop_gradient", "expand_dims"}
_MARKER = "pipeline_marker"
_OPPOSITE: dict[How | None, How] = {
    How.MAXIMUM: How.MINIMUM,
    How.MINIMUM: How.MAXIMUM,
    How.ALL: How.ANY,
    How.ANY: How.ALL,
}


def may_be_no_mean(jaxpr: core.Jaxpr, values: Sequence[Any], is_batch: Sequence[bool]) -> bool:
    """Whether any of `values` may be something else than a gradient, a mean or the same in each micro-batch."""
    arguments = list(zip(jaxpr.invars, is_batch, strict=True))
    sizes = {_shape(var)[0] for var, batch in arguments if batch}
    parameters = {(_shape(var), _dtype(var)) for var, batch in arguments if not batch}
    reduces = any(eqn.primitive.name in ("reduce_max", "reduce_min") for eqn in jaxpr.eqns)
    for value in values:
        shape = _shape(value)
        if not _is_float(value) or set(shape) & sizes:
            return True
        if (shape, _dtype(value)) not in parameters and (shape or reduces):
            return True
    return False


def how_to_combine(
    one: core.Jaxpr, two: core.Jaxpr | None, values: Sequence[Any], is_batch: Sequence[bool]
) -> list[Combined]:
    """How each of `values` of `one` is combined.

    Args:
        one: The jaxpr of one micro-batch.
        two: The same of one twice as large; None where the function cannot be traced with that.
        values: Variables of `one`.
        is_batch: Which arguments are split into micro-batches.

    Raises:
        errors.MicroBatchError: a value can be neither averaged nor combined in another way that is known.
    """
    program = _Program(one, two, values, is_batch)
    return [program.combined(number, value) for number, value in enumerate(values)]


class _Program:
    """Facts about the variables of a jaxpr."""

    def __init__(
        self, one: core.Jaxpr, two: core.Jaxpr | None, values: Sequence[Any], is_batch: Sequence[bool]
    ) -> None:
        self._made_by = {var: eqn for eqn in one.eqns for var in eqn.outvars}
        grows = None if two is None else _growing_dims(one, two)
        if grows is None and may_be_no_mean(one, values, is_batch):
            logger.warning(
                "what alpa.grad and alpa.value_and_grad give is averaged over micro-batches as in Alpa, predictions "
                "and maxima, too: the function cannot be traced, or does something else, with another batch size, so "
                "it is not known which values have the batch among their dims"
            )
        self._grows = grows or {}
        self._depends = {var for var, batch in zip(one.invars, is_batch, strict=True) if batch}
        for eqn in one.eqns:
            depends = [not isinstance(atom, core.Literal) and atom in self._depends for atom in eqn.invars]
            if eqn.primitive.name == _MARKER:  # each value goes through by itself
                self._depends.update(var for var, each in zip(eqn.outvars, depends, strict=True) if each)
            elif any(depends):
                self._depends.update(eqn.outvars)

    def combined(self, number: int, value: Any) -> Combined:
        """How a value is combined; `number` is its place among the values."""
        if isinstance(value, core.Literal) or value not in self._depends:
            return Combined(How.MEAN if _is_float(value) else How.SAME)
        dims = self._grows.get(value, ())
        if len(dims) == 1 and dims[0][1]:
            return Combined(How.JOINED, dims[0][0])
        if dims:
            raise errors.MicroBatchError.several_dims(self._said(number, value), len(dims) > 1)
        how = self._reduction(value)
        if how is not None and not (how is How.TOTAL and _is_float(value)):  # Alpa averages sums of floats
            return Combined(how)
        if _is_float(value):
            return Combined(How.MEAN)
        raise errors.MicroBatchError.no_mean(self._said(number, value))

    def _reduction(self, value: Any) -> How | None:
        """The reduction over the batch that a value is, up to what commutes with it; None where that is not known."""
        if isinstance(value, core.Literal) or value not in self._depends:
            return None
        eqn = self._made_by.get(value)
        if eqn is None:
            return None
        name = eqn.primitive.name
        if name == _MARKER:
            return self._reduction(eqn.invars[eqn.outvars.index(value)])
        if name in _REDUCE and self._is_over_batch(eqn):
            return _REDUCE[name]
        if name in _MOVING:
            return self._reduction(eqn.invars[0])
        if name == "convert_element_type":
            return self._converted(eqn)
        if name in ("neg", "not"):
            how = self._reduction(eqn.invars[0])
            return how if (name, how) == ("neg", How.TOTAL) else _OPPOSITE.get(how)
        if name in ("add", "sub"):  # counts of several parts of a model
            hows = {self._reduction(atom) for atom in eqn.invars}
            return How.TOTAL if hows == {How.TOTAL} else None
        if name in ("max", "min"):
            hows = {self._reduction(atom) for atom in eqn.invars}
            return hows.pop() if hows == {_REDUCE[f"reduce_{name}"]} else None
        return None

    def _converted(self, eqn: core.JaxprEqn) -> How | None:
        """A conversion between numbers keeps their order, and whole numbers' sums."""
        how = self._reduction(eqn.invars[0])
        kinds = [_dtype(atom).kind for atom in (eqn.invars[0], eqn.outvars[0])]
        if how is How.TOTAL and set(kinds) <= set("iu"):
            return how
        return how if how in (How.MAXIMUM, How.MINIMUM) and "b" not in kinds else None

    def _is_over_batch(self, eqn: core.JaxprEqn) -> bool:
        """Whether it reduces every dim of its operand that grows with the batch."""
        dims = {dim for dim, _ in self._grows.get(eqn.invars[0], ())}
        return bool(dims) and dims <= set(eqn.params["axes"])

    def _said(self, number: int, value: Any) -> str:
        eqn = self._made_by.get(value)
        where = (
            "" if eqn is None else f", made by {eqn.primitive.name} at {source_info_util.summarize(eqn.source_info)}"
        )
        return f"result {number} of alpa.grad or alpa.value_and_grad ({value.aval.str_short()}{where})"


def _growing_dims(one: core.Jaxpr, two: core.Jaxpr) -> dict[Any, tuple[tuple[int, bool], ...]] | None:
    """For each variable the dims that grow with the batch, and whether each is the batch and nothing else.

    None where the two have not the same equations: a function may do something else for another batch.
    """
    pairs = list(zip(one.invars, two.invars, strict=True))
    if [eqn.primitive for eqn in one.eqns] != [eqn.primitive for eqn in two.eqns]:
        return None
    for eqn, other in zip(one.eqns, two.eqns, strict=True):
        pairs += zip(eqn.outvars, other.outvars, strict=True)
    grown: dict[Any, tuple[tuple[int, bool], ...]] = {}
    sizes = {_shape(a)[0] for a, b in pairs[: len(one.invars)] if _shape(a) != _shape(b)}
    for a, b in pairs:
        shapes = zip(_shape(a), _shape(b), strict=True)
        dims = tuple((dim, before in sizes) for dim, (before, after) in enumerate(shapes) if before != after)
        if dims:
            grown[a] = dims
    return grown


def _shape(atom: Any) -> tuple[int, ...]:
    return getattr(atom.aval, "shape", ())


def _dtype(atom: Any) -> Any:
    return jnp.dtype(atom.aval.dtype)


def _is_float(atom: Any) -> bool:
    return jnp.issubdtype(atom.aval.dtype, jnp.inexact)
