"""The parts of the old pjit with which alpa reads manual shardings: PartitionSpecs in, parsed partitions out.

Takes a pytree of `PartitionSpec`s and Nones (None: replicated) as the user wrote it and gives back the same pytree
with a `ParsedPartitionSpec` at each leaf, in which every dim has the tuple of the mesh axes that cut it. Whether the
axes exist and fit the array is checked where mesh and array are known.
"""

from collections.abc import Iterator
from typing import Any

from jax import tree_util
from jax.sharding import PartitionSpec

from alpa_on_jax import errors
from alpa_on_jax.jax.interpreters.pxla import MeshAxisName, get_array_mapping

__all__ = [
    "_UNSPECIFIED",
    "ParsedPartitionSpec",
    "PartitionSpec",
    "_is_auto",
    "_is_from_gda",
    "_is_unspecified",
    "_prepare_axis_resources",
    "get_array_mapping",
]


class _UnspecifiedValue:
    def __repr__(self) -> str:
        return "_UNSPECIFIED"

    def __reduce__(self) -> str:
        # There is one of them only, in every process.
        return "_UNSPECIFIED"


_UNSPECIFIED = _UnspecifiedValue()


class ParsedPartitionSpec:
    """A PartitionSpec with a tuple of mesh axes for each dim. Iterating it gives these tuples."""

    def __init__(self, user_spec: PartitionSpec | None, partitions: tuple[tuple[MeshAxisName, ...], ...]) -> None:
        self.user_spec = user_spec
        self.partitions = partitions

    @classmethod
    def from_user_input(cls, entry: PartitionSpec | None, arg_name: str) -> "ParsedPartitionSpec":
        """Parse one PartitionSpec or None; `arg_name` says in errors where it comes from.

        Raises:
            errors.ShardingOptionError: it is neither, or has an entry that names no mesh axes, or names one twice.
        """
        if entry is None:
            return cls(None, ())
        if not isinstance(entry, PartitionSpec):
            raise errors.ShardingOptionError(
                f"{arg_name}: {entry!r} is no PartitionSpec and not None (None means replicated)"
            )
        partitions = []
        for part in entry:
            if part is PartitionSpec.UNCONSTRAINED:
                raise errors.ShardingOptionError(f"{arg_name}: {entry} leaves a dim unconstrained; alpa cannot do that")
            axes = () if part is None else tuple(part) if isinstance(part, (tuple, list)) else (part,)
            partitions.append(axes)
        named = [axis for axes in partitions for axis in axes]
        for axis in named:
            if named.count(axis) > 1:
                raise errors.ShardingOptionError(
                    f"{arg_name}: {entry} names the mesh axis {axis!r} twice; an axis can cut one dim only"
                )
        return cls(entry, tuple(partitions))

    def __len__(self) -> int:
        return len(self.partitions)

    def __iter__(self) -> Iterator[tuple[MeshAxisName, ...]]:
        return iter(self.partitions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ParsedPartitionSpec) and self.partitions == other.partitions

    def __hash__(self) -> int:
        return hash(self.partitions)

    def __repr__(self) -> str:
        return f"ParsedPartitionSpec(partitions={self.partitions})"


def _is_unspecified(value: Any) -> bool:
    return isinstance(value, _UnspecifiedValue)


def _is_auto(value: Any) -> bool:
    """Whether this is pjit's AUTO, which is not to be had any more."""
    return False


def _is_from_gda(value: Any) -> bool:
    """Whether this is pjit's FROM_GDA: there are no GlobalDeviceArrays any more."""
    return False


def _prepare_axis_resources(axis_resources: Any, arg_name: str) -> tuple[Any, list[ParsedPartitionSpec], Any, bool]:
    """Parse a pytree of PartitionSpecs and Nones.

    Returns:
        The parsed pytree, its leaves, its structure (a None counts as leaf), and whether a leaf is AUTO: never.
    """
    entries, treedef = tree_util.tree_flatten(axis_resources, is_leaf=lambda x: x is None)
    parsed = [
        entry if _is_unspecified(entry) else ParsedPartitionSpec.from_user_input(entry, arg_name) for entry in entries
    ]
    return tree_util.tree_unflatten(treedef, parsed), parsed, treedef, False
