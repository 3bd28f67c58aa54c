"""The sharding specs of `jax.interpreters.pxla`, which JAX replaced by NamedSharding; alpa's plans are made of them.

Takes, for each dim of an array, whether and into how many chunks it is cut (`sharding`), and for each axis of the
device mesh, which of those cuts it carries or that it holds copies (`mesh_mapping`); gives back which slice of the
array each device holds (`indices`) and the same as an XLA sharding (`sharding_proto`).

Invariants: specs are values (hashable, picklable, equal exactly if both parts are equal in order: `Replicated` at
another place makes another spec). The cuts are numbered through all dims in order, and every cut is carried by
exactly one mesh axis; devices are numbered in row-major order of the mesh.
"""

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax._src.lib import xla_client as xc

from alpa_on_jax import errors
from alpa_on_jax.jax._src.device_array import ShardedDeviceArray

__all__ = [
    "ArrayMapping",
    "Chunked",
    "Index",
    "MeshAxisName",
    "NoSharding",
    "Replicated",
    "ShardIndices",
    "ShardedAxis",
    "ShardedDeviceArray",
    "ShardingSpec",
    "Unstacked",
    "_ShardedDeviceArray",
    "_hashable_index",
    "get_array_mapping",
    "new_mesh_sharding_specs",
    "sharding_spec_sharding_proto",
    "spec_to_indices",
]

MeshAxisName = Any
Index = int | slice | tuple[int | slice, ...]
ArrayMapping = OrderedDict  # mesh axis name -> the dim that it cuts, in the order in which the dim is cut

_ShardedDeviceArray = ShardedDeviceArray


@dataclass(frozen=True, slots=True)
class NoSharding:
    """The dim is not cut."""


@dataclass(frozen=True, slots=True, init=False)
class Chunked:
    """The dim is cut into `chunks[0]` parts, each of these into `chunks[1]`, and so on."""

    chunks: tuple[int, ...]

    def __init__(self, chunks: Iterable[int]) -> None:
        object.__setattr__(self, "chunks", tuple(int(chunk) for chunk in chunks))

    def __repr__(self) -> str:
        return f"Chunked({','.join(map(str, self.chunks))})"


@dataclass(frozen=True, slots=True)
class Unstacked:
    """The dim, of length `size`, is cut into its elements and is gone in each part."""

    size: int

    def __repr__(self) -> str:
        return f"Unstacked({self.size})"


@dataclass(frozen=True, slots=True)
class ShardedAxis:
    """The mesh axis carries cut number `axis`."""

    axis: int


@dataclass(frozen=True, slots=True)
class Replicated:
    """The mesh axis, of length `replicas`, holds copies."""

    replicas: int


@dataclass(frozen=True, init=False)
class ShardingSpec:
    """How an array is cut over a device mesh; see the module's docstring."""

    # No slots: alpa.monkey_patch sets how a spec is pickled on this class.
    sharding: tuple[NoSharding | Chunked | Unstacked, ...]
    mesh_mapping: tuple[ShardedAxis | Replicated, ...]

    def __init__(
        self,
        sharding: Iterable[NoSharding | Chunked | Unstacked],
        mesh_mapping: Iterable[ShardedAxis | Replicated],
    ) -> None:
        object.__setattr__(self, "sharding", tuple(sharding))
        object.__setattr__(self, "mesh_mapping", tuple(mesh_mapping))

    def __repr__(self) -> str:
        return f"ShardingSpec({self.sharding}, {self.mesh_mapping})"

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        """The lengths of the mesh axes."""
        cuts = [size for sizes in self._cut_sizes() for size in sizes]
        return tuple(cuts[m.axis] if isinstance(m, ShardedAxis) else m.replicas for m in self.mesh_mapping)

    def indices(self, shape: Sequence[int]) -> np.ndarray:
        """What each device holds of an array of `shape`: an object array of the mesh's shape, of index tuples.

        Raises:
            errors.ShardingOptionError: `shape` has another rank, or a dim's length is not a multiple of its chunks.
        """
        if len(shape) != len(self.sharding):
            raise errors.ShardingOptionError(
                f"{self} is for arrays of rank {len(self.sharding)}, but the array's shape is {tuple(shape)}"
            )
        parts = [_parts(dim, length, how) for dim, (length, how) in enumerate(zip(shape, self.sharding, strict=True))]
        cut_sizes = [size for sizes in self._cut_sizes() for size in sizes]
        by_cut = np.empty([math.prod(cut_sizes)], dtype=object)
        for position, index in enumerate(itertools.product(*parts)):
            by_cut[position] = index
        by_cut = by_cut.reshape(cut_sizes)

        replicas = [m.replicas for m in self.mesh_mapping if isinstance(m, Replicated)]
        next_replica = itertools.count()
        permutation = [
            len(replicas) + m.axis if isinstance(m, ShardedAxis) else next(next_replica) for m in self.mesh_mapping
        ]
        return np.broadcast_to(by_cut, (*replicas, *by_cut.shape)).transpose(permutation)

    def sharding_proto(self, special_axes: Mapping[int, Any] = {}) -> Any:
        """The same as an XLA sharding, with every device listed.

        Args:
            special_axes: mesh axes that hold no copies but something else: axis -> `OpSharding.Type`.

        Raises:
            errors.ShardingOptionError: a dim is `Unstacked`, for which XLA has no sharding.
        """
        proto = xc.OpSharding()
        copied = [axis for axis, m in enumerate(self.mesh_mapping) if isinstance(m, Replicated)]
        tile_shape = [math.prod(sizes) for sizes in self._cut_sizes()]
        # A dim that is cut over a mesh axis of one device is not cut.
        if math.prod(tile_shape) == 1 and not special_axes:
            proto.type = xc.OpSharding.Type.REPLICATED
            return proto
        if any(isinstance(how, Unstacked) for how in self.sharding):
            raise errors.ShardingOptionError(f"{self} has an Unstacked dim, which has no XLA sharding")

        mesh_shape = self.mesh_shape
        axis_of_cut = {m.axis: axis for axis, m in enumerate(self.mesh_mapping) if isinstance(m, ShardedAxis)}
        permutation = [axis_of_cut[cut] for cut in sorted(axis_of_cut)]
        proto.type = xc.OpSharding.Type.OTHER
        if copied and not special_axes:
            tile_shape.append(math.prod(mesh_shape[axis] for axis in copied))
            permutation.extend(copied)
            proto.replicate_on_last_tile_dim = True
        elif copied:
            by_type: dict[Any, list[int]] = {}
            for axis in copied:
                by_type.setdefault(special_axes.get(axis, xc.OpSharding.Type.REPLICATED), []).append(axis)
            last_tile_dims = sorted(by_type, key=lambda kind: kind.value)
            for kind in last_tile_dims:
                tile_shape.append(math.prod(mesh_shape[axis] for axis in by_type[kind]))
                permutation.extend(by_type[kind])
            proto.last_tile_dims = last_tile_dims
        devices = np.arange(math.prod(mesh_shape)).reshape(mesh_shape).transpose(permutation)
        proto.tile_assignment_dimensions = tile_shape
        proto.tile_assignment_devices = [int(device) for device in devices.flat]
        return proto

    def _cut_sizes(self) -> list[tuple[int, ...]]:
        return [
            how.chunks if isinstance(how, Chunked) else (how.size,) if isinstance(how, Unstacked) else ()
            for how in self.sharding
        ]


def _parts(dim: int, length: int, how: NoSharding | Chunked | Unstacked) -> Sequence[int | slice]:
    if isinstance(how, NoSharding):
        return (slice(None),)
    if isinstance(how, Unstacked):
        if length != how.size:
            raise errors.ShardingOptionError(f"dim {dim} of length {length} cannot be {how}")
        return range(length)
    number = math.prod(how.chunks)
    if length % number:
        raise errors.ShardingOptionError(f"dim {dim} of length {length} cannot be cut into {number} equal chunks")
    size = length // number
    return [slice(i * size, (i + 1) * size) for i in range(number)]


def sharding_spec_sharding_proto(spec: ShardingSpec, special_axes: Mapping[int, Any] = {}) -> Any:
    """See `ShardingSpec.sharding_proto`."""
    return spec.sharding_proto(special_axes)


class ShardIndices(tuple):
    """What each device holds of an array, in the order of the devices; it also remembers the spec that says so."""

    spec: ShardingSpec

    @classmethod
    def of(cls, shape: Sequence[int], spec: ShardingSpec) -> "ShardIndices":
        indices = cls(spec.indices(shape).flat)
        indices.spec = spec
        return indices


def spec_to_indices(shape: Sequence[int], spec: ShardingSpec) -> ShardIndices:
    """What each device holds of an array of `shape`, in the order of the devices."""
    return ShardIndices.of(shape, spec)


def _hashable_index(index: Any) -> Any:
    """An index with its slices as tuples, because Python before 3.12 cannot hash a slice."""
    if isinstance(index, tuple):
        return tuple(_hashable_index(part) for part in index)
    return (index.start, index.stop, index.step) if isinstance(index, slice) else index


def get_array_mapping(partitions: Iterable[Sequence[MeshAxisName] | None]) -> ArrayMapping:
    """From the mesh axes of each dim to the dim of each mesh axis."""
    return OrderedDict((axis, dim) for dim, axes in enumerate(partitions) if axes is not None for axis in axes)


def new_mesh_sharding_specs(
    axis_sizes: Mapping[MeshAxisName, int], axis_names: Sequence[MeshAxisName]
) -> Callable[[int, ArrayMapping], ShardingSpec]:
    """A function that makes the spec of an array from its rank and the dim that each mesh axis cuts.

    Raises (the returned function):
        errors.ShardingOptionError: an axis that the mesh does not have, or a dim that the array does not have.
    """
    axis_position = {name: position for position, name in enumerate(axis_names)}

    def make_spec(num_dims: int, dim_of_axis: ArrayMapping) -> ShardingSpec:
        chunks: list[list[int]] = [[] for _ in range(num_dims)]
        mesh_mapping: list[ShardedAxis | Replicated] = [Replicated(size) for size in axis_sizes.values()]
        # Sorted by dim; axes of one dim stay in the order in which they cut it.
        for cut, (name, dim) in enumerate(sorted(dim_of_axis.items(), key=lambda item: item[1])):
            if name not in axis_position:
                raise errors.ShardingOptionError(
                    f"a PartitionSpec names the mesh axis {name!r}, but the mesh axes are {tuple(axis_names)}"
                )
            if dim >= num_dims:
                raise errors.ShardingOptionError(
                    f"a PartitionSpec puts the mesh axis {name!r} on dim {dim}, but the array has {num_dims} dims"
                )
            chunks[dim].append(axis_sizes[name])
            mesh_mapping[axis_position[name]] = ShardedAxis(cut)
        return ShardingSpec((Chunked(sizes) if sizes else NoSharding() for sizes in chunks), mesh_mapping)

    return make_spec
