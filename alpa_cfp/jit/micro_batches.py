"""A training step whose samples go through it in micro-batches: less memory for activations, the same result.

Takes a function of arrays with samples along their first dim; gives one with a loop over parts of the samples. Both
come from traces: of the function with all samples, and of the same function with a part of them. They have the same
equations, and the dims that differ are those with samples. What is computed for each sample goes into the loop; where
samples are added up, the parts are, and what needs these sums, as an optimizer does, comes after the loop (gradient
accumulation, as Alpa's `num_micro_batches` for functions that mark their gradients). Numbers of the function stay those
of all samples, so a mean is still over all. Invariant: a function is changed only if its result stays the same but for
the order of sums; any other is an error.

Uses `jax.extend.core` and the way in which its `eval_jaxpr` binds an equation, tested with 0.10.2, 0.11.2
and 0.12.0.1.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from alpa_cfp.errors import MicroBatchError, OptionError
from alpa_cfp.jit import unrolling
from alpa_cfp.jit.explicit import is_explicit_type
from alpa_cfp.jit.jaxprs import REMAT, called
from alpa_cfp.jit.sample_dims import is_same_but_for_samples, reason_of_samples, reason_of_sum

_BARRIER = "optimization_barrier"


def in_micro_batches(
    fn: Callable[..., Any], num_micro_batches: int, batch_argnums: int | Sequence[int] = 1
) -> Callable[..., Any]:
    """Returns `fn` with a loop over micro-batches, for `jax.jit` or `autoshard`.

    The samples are along the first dim of each array of the arguments at `batch_argnums`. Results that have samples are
    put together again. Whatever else the function computes from samples has to be a sum over them, such as a loss and
    its gradients; a norm over the batch, random numbers for each sample and loops of unknown length are errors.
    Other loops are unrolled. Sums have the dtype that they have in `fn`. `fn` is a whole
    training step, with its gradients: the result cannot be differentiated.

    Args:
        fn: The function.
        num_micro_batches: How many parts the samples are divided into; it divides their number. A part of one sample
            may be refused, since JAX computes dims of one element differently.
        batch_argnums: The positions of the arguments with samples.

    Raises:
        OptionError: `num_micro_batches` is no whole number, or less than 1.
        MicroBatchError: by the returned function, if samples cannot be divided or not be told apart, or an argument is
            on a mesh in Explicit mode.
    """
    count = num_micro_batches
    if not isinstance(count, int) or count < 1:
        raise OptionError.not_whole("in_micro_batches", "num_micro_batches", count, 1)

    @functools.wraps(fn)
    def stepwise(*args: Any, **kwargs: Any) -> Any:
        if count == 1:
            return fn(*args, **kwargs)
        positions = positions_of(batch_argnums, len(args))
        flags = [number in positions for number, arg in enumerate(args) for _ in jax.tree.leaves(arg)]
        leaves, tree = jax.tree.flatten((args, kwargs))
        flags += [False] * (len(leaves) - len(flags))
        leaves = [jnp.asarray(leaf) for leaf in leaves]
        if any(is_explicit_type(jax.typeof(leaf)) for leaf in leaves):
            raise MicroBatchError.explicit()
        types = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=jax.typeof(leaf).weak_type) for leaf in leaves]
        samples = samples_of([each.shape for each, flag in zip(types, flags, strict=True) if flag])
        if samples % count:
            raise MicroBatchError.not_divided(samples, count)
        parts = [
            each.update(shape=(samples // count, *each.shape[1:])) if flag else each
            for each, flag in zip(types, flags, strict=True)
        ]
        whole, structure = _traced(fn, tree, types)
        try:
            part, _ = _traced(fn, tree, parts)
        except MicroBatchError:
            raise
        except Exception as error:  # of the function itself, which may look at the number of samples
            raise MicroBatchError.not_separate("it cannot be computed for fewer samples") from error
        return jax.tree.unflatten(structure, _Step.of(whole, part, count, samples).run(leaves))

    return stepwise


def positions_of(batch_argnums: int | Sequence[int], count: int) -> tuple[int, ...]:
    """Returns the positions of arguments with samples, counted from the first one.

    Args:
        batch_argnums: The positions; negative ones count from the last argument.
        count: The number of positional arguments.

    Raises:
        MicroBatchError: there is no such argument.
    """
    given = (batch_argnums,) if isinstance(batch_argnums, int) else tuple(batch_argnums)
    if any(not -count <= each < count for each in given):
        raise MicroBatchError.no_argument(given, count)
    return tuple(dict.fromkeys(each % count for each in given))


def samples_of(shapes: Sequence[tuple[int, ...]]) -> int:
    """Returns the number of samples in arrays of these shapes.

    Raises:
        MicroBatchError: they have no samples, or different numbers of them.
    """
    numbers = {shape[0] if shape else 1 for shape in shapes}
    if len(numbers) != 1:
        raise MicroBatchError.unequal(sorted(numbers))
    return numbers.pop()


@dataclass(frozen=True, slots=True)
class _Equation:
    """An equation.

    Attributes:
        name: The name of its primitive.
        bind: Computes it: (operands, parameters) -> results.
        params: Its parameters.
        operands: Numbers of values; what is known, a literal or a constant, in a tuple.
        results: Numbers of values.
    """

    name: str
    bind: Callable[[Sequence[Any], dict[str, Any]], Sequence[Any]]
    params: dict[str, Any]
    operands: tuple[Any, ...]
    results: tuple[int, ...]

    @property
    def used(self) -> list[int]:
        """The values among its operands."""
        return [each for each in self.operands if isinstance(each, int)]


@dataclass(frozen=True, slots=True)
class _Trace:
    """A function without calls; its arguments are the first values.

    Attributes:
        equations: Its equations.
        types: Of each value.
        outputs: Its results, as operands of equations.
    """

    equations: tuple[_Equation, ...]
    types: tuple[jax.ShapeDtypeStruct, ...]
    outputs: tuple[Any, ...]

    @property
    def form(self) -> list[tuple[Any, ...]]:
        """What it has in common with the same function for other numbers of samples."""
        return [
            (
                each.name,
                [operand if isinstance(operand, int) else self.shape(operand) for operand in each.operands],
                [len(self.types[result].shape) for result in each.results],
            )
            for each in self.equations
        ]

    def shape(self, operand: Any) -> tuple[int, ...]:
        """The shape of an operand."""
        return self.types[operand].shape if isinstance(operand, int) else jnp.shape(operand[0])


def _traced(fn: Callable[..., Any], tree: Any, types: Sequence[jax.ShapeDtypeStruct]) -> tuple[_Trace, Any]:
    """The trace of a function for flat arguments, and the structure of its result."""
    args, kwargs = jax.tree.unflatten(tree, types)
    written, result = jax.make_jaxpr(fn, return_shape=True)(*args, **kwargs)
    if written.effects:
        raise MicroBatchError.not_separate("it has effects, such as a callback into Python")
    closed = jax.make_jaxpr(lambda *args: unrolling.evaluate(written, args, unrolling.MAX_EQUATIONS))(*types)
    flat = _Flattening(list(types))
    outputs = flat.visit(closed.jaxpr, closed.consts, range(len(types)))
    return _Trace(tuple(flat.equations), tuple(flat.types), tuple(outputs)), jax.tree.structure(result)


@dataclass
class _Flattening:
    """Takes the equations of a jaxpr and of those that it calls."""

    types: list[jax.ShapeDtypeStruct]
    equations: list[_Equation] = field(default_factory=list)

    def visit(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """Adds the equations of a jaxpr; gives its results."""
        env = dict(zip(jaxpr.constvars, ((each,) for each in consts), strict=True))
        env |= dict(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Any:
            return (atom.val,) if isinstance(atom, core.Literal) else env[atom]

        for eqn in jaxpr.eqns:
            operands, inner = tuple(map(read, eqn.invars)), called(eqn)
            name = eqn.primitive.name
            if name == _BARRIER or (name == REMAT and eqn.params["prevent_cse"]):
                # One for each value: some have samples, and others do not.
                pairs = zip(eqn.invars, operands, strict=True)
                operands = tuple(self._add(_BARRIER, _barrier, {}, [atom], (each,))[0] for atom, each in pairs)
            results: Sequence[Any] = operands
            if inner is not None:
                results = self.visit(*inner, operands)
            elif name != _BARRIER:
                results = self._add(name, _bound(eqn.primitive), eqn.params, eqn.outvars, operands)
            env |= dict(zip(eqn.outvars, results, strict=True))
        return list(map(read, jaxpr.outvars))

    def _add(
        self, name: str, bind: Any, params: dict[str, Any], made: Sequence[Any], operands: tuple[Any, ...]
    ) -> tuple[int, ...]:
        first = len(self.types)
        self.types += [jax.ShapeDtypeStruct(each.aval.shape, each.aval.dtype) for each in made]
        results = tuple(range(first, len(self.types)))
        self.equations.append(_Equation(name, bind, params, operands, results))
        return results


def _bound(primitive: Any) -> Callable[[Sequence[Any], dict[str, Any]], Sequence[Any]]:
    def bind(operands: Sequence[Any], params: dict[str, Any]) -> Sequence[Any]:
        found = primitive.bind(*operands, **primitive.get_bind_params(params))
        return found if primitive.multiple_results else [found]

    return bind


def _barrier(operands: Sequence[Any], _: dict[str, Any]) -> Sequence[Any]:
    """What `jax.checkpoint` puts before what it computes again, so that it is not merged with the original."""
    return lax.optimization_barrier(list(operands))


@dataclass(frozen=True, slots=True)
class _Step:
    """A function in three parts.

    Attributes:
        whole: Its trace.
        params: The parameters of each equation for a part of the samples.
        count: The number of parts.
        samples: The number of samples.
        dims: For each value the dim with samples; None for none.
        before, loop, after: The equations that need no samples, those of each part, and those that need sums of all.
        sums: The values that are summed over parts.
    """

    whole: _Trace
    params: tuple[dict[str, Any], ...]
    count: int
    samples: int
    dims: tuple[int | None, ...]
    before: tuple[int, ...]
    loop: tuple[int, ...]
    after: tuple[int, ...]
    sums: tuple[int, ...]

    @classmethod
    def of(cls, whole: _Trace, part: _Trace, count: int, samples: int) -> "_Step":
        """The function whose traces these are.

        Raises:
            MicroBatchError: samples are not computed by themselves, or not summed.
        """
        if whole.form != part.form:
            raise _other()
        dims = tuple(map(functools.partial(_sample_dim, count, samples), whole.types, part.types))
        before, loop, after, sums = list[int](), list[int](), list[int](), list[int]()
        late, zeros = set[int](), set[int]()
        for number, each in enumerate(whole.equations):
            own = [dims[operand] if isinstance(operand, int) else None for operand in each.operands]
            shapes, is_late = [whole.shape(operand) for operand in each.operands], not late.isdisjoint(each.used)
            if each.name == "broadcast_in_dim" and _is_zero(each.operands[0]):
                zeros.update(each.results)
            if all(dim is None for dim in (*own, *(dims[result] for result in each.results))):
                (after if is_late else before).append(number)
                late.update(each.results if is_late else ())
                continue
            if is_late:
                raise MicroBatchError.not_separate(f"{each.name} needs a sum over all samples for each of them")
            out = dims[each.results[0]]
            reason = _reason(each, own, dims, shapes, whole, zeros)
            if reason:
                raise MicroBatchError.not_separate(reason)
            if not is_same_but_for_samples(each.name, each.params, part.equations[number].params, own, out):
                raise _other()
            loop.append(number)
            if out is None:
                sums += each.results
                late.update(each.results)
        params = tuple(each.params for each in part.equations)
        return cls(whole, params, count, samples, dims, tuple(before), tuple(loop), tuple(after), tuple(sums))

    def run(self, args: Sequence[Any]) -> list[Any]:
        """Computes the flat results."""
        env = dict(enumerate(args))
        for number in self.before:
            self._compute(number, self.whole.equations[number].params, env)
        batch = [value for value in range(len(args)) if self.dims[value] is not None]
        results = dict.fromkeys(each for each in self.whole.outputs if isinstance(each, int))
        stacked = [value for value in results if self.dims[value] is not None]
        parts = [_interleaved(args[value], self.count) for value in batch]

        def of_part(carried: tuple[Any, list[Any], list[Any]]) -> tuple[Any, list[Any], list[Any]]:
            index, sums, rows = carried
            own = env | dict(
                zip(batch, (lax.dynamic_index_in_dim(each, index, 1, False) for each in parts), strict=True)
            )
            for number in self.loop:
                self._compute(number, self.params[number], own)
            sums = [total + own[value] for total, value in zip(sums, self.sums, strict=True)]
            made = [self._rows(own[value], value) for value in stacked]
            rows = [lax.dynamic_update_index_in_dim(row, one, index, 1) for row, one in zip(rows, made, strict=True)]
            return index + 1, sums, rows

        sums = [jnp.zeros(self.whole.types[value].shape, self.whole.types[value].dtype) for value in self.sums]
        rows = [jnp.zeros(self._rows_shape(value), self.whole.types[value].dtype) for value in stacked]
        # A loop that nothing unrolls: it is there for what its iterations do not keep.
        _, sums, rows = lax.while_loop(lambda carried: carried[0] < self.count, of_part, (jnp.int32(0), sums, rows))
        env |= dict(zip(self.sums, sums, strict=True))
        for value, row in zip(stacked, rows, strict=True):
            env[value] = jnp.moveaxis(row.reshape((-1, *row.shape[3:])), 0, self.dims[value] or 0)
        for number in self.after:
            self._compute(number, self.whole.equations[number].params, env)
        return [env[each] if isinstance(each, int) else each[0] for each in self.whole.outputs]

    def _rows(self, part: Any, value: int) -> Any:
        """Results of a part of the samples: [samples, of each sample in the dim of samples, ...]."""
        moved = jnp.moveaxis(part, self.dims[value] or 0, 0)
        shape = self._rows_shape(value)
        return moved.reshape((shape[0], *shape[2:]))

    def _rows_shape(self, value: int) -> tuple[int, ...]:
        """[samples of a part, parts, of each sample in the dim of samples, ...]."""
        shape, dim = self.whole.types[value].shape, self.dims[value] or 0
        rest = shape[:dim] + shape[dim + 1 :]
        return self.samples // self.count, self.count, shape[dim] // self.samples, *rest

    def _compute(self, number: int, params: dict[str, Any], env: dict[int, Any]) -> None:
        each = self.whole.equations[number]
        operands = [env[operand] if isinstance(operand, int) else operand[0] for operand in each.operands]
        env |= dict(zip(each.results, each.bind(operands, params), strict=True))


def _other() -> MicroBatchError:
    return MicroBatchError.not_separate("it does other things for other numbers of samples")


def _is_zero(operand: Any) -> bool:
    return not isinstance(operand, int) and jnp.shape(operand[0]) == () and not operand[0]


def _interleaved(samples: Any, count: int) -> Any:
    """[samples / count, count, ...]: a device that has some of the samples has some of each part."""
    return samples.reshape((-1, count, *samples.shape[1:]))


def _sample_dim(count: int, samples: int, whole: jax.ShapeDtypeStruct, part: jax.ShapeDtypeStruct) -> int | None:
    """The dim in which a value is smaller for a part of the samples; it has as many elements of each sample."""
    dims = [dim for dim, sizes in enumerate(zip(whole.shape, part.shape, strict=True)) if sizes[0] != sizes[1]]
    if not dims:
        return None
    size = whole.shape[dims[0]]
    if len(dims) > 1 or size != count * part.shape[dims[0]] or size % samples:
        raise MicroBatchError.not_separate(f"a value of shape {whole.shape} has no dim of samples alone")
    return dims[0]


def _reason(
    each: _Equation,
    own: Sequence[int | None],
    dims: Sequence[int | None],
    shapes: Sequence[tuple[int, ...]],
    whole: _Trace,
    zeros: set[int],
) -> str:
    """Why the samples of an equation cannot be told apart; "" if they can."""
    results = {dims[result] for result in each.results}
    if len(results) > 1:
        return f"`{each.name}` has results with and without samples"
    (out,) = results
    if out is None:
        return reason_of_sum(each.name, each.params, own, shapes, lambda operand: each.operands[operand] in zeros)
    reason = reason_of_samples(each.name, each.params, own, out, shapes, whole.types[each.results[0]].shape)
    return f"`{each.name}` cannot be divided: {reason}" if reason else ""
