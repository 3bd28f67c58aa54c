"""What a user asks of the shardings of arguments and results, as constraints of the plan.

Takes `in_shardings` and `out_shardings` as `jax.jit` does, arguments that lie on the mesh already, or what a plan
remembers of them; gives a `Constraint` for each leaf of which something is asked. Invariant: two of these that
contradict each other are an error that names both.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from alpa_cfp.errors import AutoshardError
from alpa_cfp.plan.signature import Asked, Dims, Signature
from alpa_cfp.spmd.shardings.constraints import Constraint
from alpa_cfp.spmd.shardings.sharding import Axis, LogicalMesh
from alpa_cfp.targets.target import TargetMesh

Paths = Sequence[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class AskedShardings:
    """What is asked of the leaves of a function's arguments and results.

    Attributes:
        axes: The mesh, without its devices.
        inputs: For each leaf of `(args, kwargs)` what is asked of its dims.
        outputs: Gives the same for the leaves of the result, from their paths and shapes and the result's structure.
    """

    axes: AbstractMesh
    inputs: tuple[Asked, ...]
    outputs: Callable[[Paths, Any], tuple[Asked, ...]]

    @property
    def mesh(self) -> LogicalMesh:
        """The logical mesh."""
        return LogicalMesh(tuple(self.axes.axis_sizes))

    def context(self) -> Any:
        """Returns the mesh over which a bare `PartitionSpec` in the function is meant, as a context.

        It is that of a context around the call, if there is one. As with `jax.jit`, arguments make it Explicit.
        """
        if not jax.sharding.get_abstract_mesh().empty:
            return nullcontext()
        is_explicit = any(map(self._is_typed, self.inputs))
        auto = self.axes.update(axis_types=(AxisType.Auto,) * len(self.axes.axis_names))
        return jax.sharding.use_abstract_mesh(self.axes if is_explicit else auto)

    def typed(self, abstract: Any) -> Any:
        """Returns `(args, kwargs)` with the shardings that their types have: those of arguments on Explicit axes."""
        leaves, tree = jax.tree.flatten(abstract)
        around = jax.sharding.get_abstract_mesh()
        mesh = self.axes if around.empty else around

        def with_type(leaf: Any, asked: Asked) -> Any:
            if not self._is_typed(asked):
                return leaf
            sharding = NamedSharding(mesh, PartitionSpec(*(names or None for names in asked)))
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type, sharding=sharding)

        return jax.tree.unflatten(tree, map(with_type, leaves, self.inputs))

    def _is_typed(self, asked: Asked) -> bool:
        is_explicit = all(kind == AxisType.Explicit for kind in self.axes.axis_types)
        return bool(asked) and None not in asked and is_explicit

    def constraint(self, asked: Asked) -> Constraint | None:
        """Returns what is asked of a leaf on the logical mesh; None for nothing."""
        if all(names is None for names in asked):
            return None
        sizes = dict(zip(self.axes.axis_names, enumerate(self.axes.axis_sizes), strict=True))

        def axes(names: tuple[str, ...]) -> tuple[Axis, ...]:
            found = (Axis(sizes[name][0], 1, sizes[name][1]) for name in names)
            return tuple(axis for axis in found if axis.size > 1)

        return Constraint(tuple(None if names is None else axes(names) for names in asked))


def asked_by_user(
    mesh: Mesh | AbstractMesh | TargetMesh, args: Sequence[Any], kwargs: dict[str, Any], inputs: Any, outputs: Any
) -> AskedShardings:
    """Returns what is asked when a function is planned.

    Args:
        mesh: The mesh.
        args, kwargs: The arguments. One with a `NamedSharding` over a mesh like `mesh` is constrained by it.
        inputs: `in_shardings` as for `jax.jit`: of `args`, or a prefix of them; a `PartitionSpec` is one over `mesh`.
        outputs: `out_shardings` as for `jax.jit`.

    Raises:
        AutoshardError: a sharding is none, is over another mesh, does not divide its array, or contradicts another one.
    """
    reader = _Reader(dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True)))
    given = [*_leaves("in_shardings", inputs, tuple(args)), *[None] * len(jax.tree.leaves(kwargs))]
    found: list[Asked] = []
    for (path, value), sharding in zip(_with_paths(args, kwargs), given, strict=True):
        shape = tuple(getattr(value, "shape", ()))
        said = reader.read(path, shape, sharding) if sharding is not None else ()
        own = reader.of_value(path, shape, value)
        found.append(_both(path, said, own) if said and own else said or own)

    def of_result(paths: Paths, tree: Any) -> tuple[Asked, ...]:
        stand_ins = jax.tree.unflatten(tree, list(range(len(paths))))
        each = _leaves("out_shardings", outputs, stand_ins)
        pairs = zip(paths, each, strict=True)
        return tuple(() if one is None else reader.read(path, shape, one) for (path, shape), one in pairs)

    return AskedShardings(_abstract(mesh), tuple(found), of_result)


def asked_by_plan(mesh: Mesh, signature: Signature) -> AskedShardings:
    """Returns what was asked when a plan for a mesh like `mesh` was made."""
    asked, results = (tuple(each.asked for each in placed) for placed in (signature.inputs, signature.outputs))
    kinds = tuple(AxisType[name] for name in signature.axis_types)
    return AskedShardings(_abstract(mesh).update(axis_types=kinds), asked, lambda *_: results)


def require_obeyed(path: str, asked: Asked, dims: Dims, mesh: Mesh | AbstractMesh | TargetMesh) -> None:
    """Checks that an argument or result lies as is asked.

    Raises:
        AutoshardError: it does not.
    """
    sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    for names, own in zip(asked, dims, strict=False):  # nothing may be asked
        if names is not None and tuple(name for name in names if sizes[name] > 1) != own:
            raise AutoshardError.not_obeyed(path, asked, dims)


def _abstract(mesh: Mesh | AbstractMesh | TargetMesh) -> AbstractMesh:
    if isinstance(mesh, Mesh):
        return mesh.abstract_mesh
    return mesh.abstract if isinstance(mesh, TargetMesh) else mesh


def _with_paths(args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_leaves_with_path((tuple(args), kwargs))
    return [(("args", "kwargs")[path[0].idx] + jax.tree_util.keystr(tuple(path[1:])), leaf) for path, leaf in leaves]


def _leaves(what: str, prefix: Any, tree: Any) -> list[Any]:
    """A prefix of `tree`, with an entry for each leaf of it."""
    if prefix is None:
        return [None] * len(jax.tree.leaves(tree))
    try:
        # Lists are taken for the tuple of arguments, as by jax.jit.
        given = tuple(prefix) if isinstance(prefix, list) and isinstance(tree, tuple) else prefix
        found: list[Any] = []

        def spread(entry: Any, part: Any) -> None:
            found.extend([entry] * len(jax.tree.leaves(part)))

        jax.tree.map(spread, given, tree, is_leaf=_is_entry)
    except ValueError as error:
        raise AutoshardError.no_prefix(what, str(error)) from error
    return found


def _is_entry(value: Any) -> bool:
    return value is None or isinstance(value, Sharding | PartitionSpec)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads shardings over one mesh.

    Attributes:
        sizes: The sizes of its axes by name.
    """

    sizes: dict[str, int]

    def read(self, path: str, shape: tuple[int, ...], sharding: Any) -> Asked:
        """What a sharding or a `PartitionSpec` asks of an array."""
        spec = sharding
        if isinstance(sharding, NamedSharding):
            named = dict(zip(sharding.mesh.axis_names, sharding.mesh.axis_sizes, strict=True))
            if named != self.sizes:
                raise AutoshardError.other_mesh(path, named, self.sizes)
            spec = sharding.spec
        if not isinstance(spec, PartitionSpec):
            raise AutoshardError.no_sharding(path, sharding)
        if len(spec) > len(shape):
            raise AutoshardError.too_many_dims(path, spec, shape)
        entries = [*spec, *[None] * (len(shape) - len(spec))]
        asked = tuple(map(_names, entries))
        for dim, (names, size) in enumerate(zip(asked, shape, strict=True)):
            if unknown := [name for name in names or () if name not in self.sizes]:
                raise AutoshardError.unknown_axis(path, spec, unknown[0], tuple(self.sizes))
            count = 1
            for name in names or ():
                count *= self.sizes[name]
            if size % count:
                raise AutoshardError.uneven(path, spec, dim, size, count)
        return asked

    def of_value(self, path: str, shape: tuple[int, ...], value: Any) -> Asked:
        """What an argument asks that lies on this mesh; nothing for any other argument."""
        sharding = getattr(value, "sharding", None)
        if not isinstance(sharding, NamedSharding) or jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return ()
        named = dict(zip(sharding.mesh.axis_names, sharding.mesh.axis_sizes, strict=True))
        return self.read(path, shape, sharding) if named == self.sizes else ()


def _names(entry: Any) -> tuple[str, ...] | None:
    if entry is PartitionSpec.UNCONSTRAINED:
        return None
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _both(path: str, said: Asked, own: Asked) -> Asked:
    """What both ask; a dim that `in_shardings` leaves free is free."""
    if any(names is not None and names != other for names, other in zip(said, own, strict=True)):
        raise AutoshardError.contradiction(path, said, own)
    return said
