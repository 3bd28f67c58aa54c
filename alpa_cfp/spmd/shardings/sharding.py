"""The sharding of one array on a logical mesh, and its forms: XLA's `OpSharding`, Shardy's attribute, local shapes.

`ArraySharding` is the form that everything here computes with: for each tensor dim the mesh axes (or parts of them)
that split it, major to minor. Invariants: an axis part is used at most once, and axes of size 1 never appear.
"""

import functools
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxlib import xla_client as xc

from alpa_cfp.spmd.ir import mlir

# The names of a logical mesh's axes, and how many it has at most: no mesh that people make for a program has more.
AXIS_NAMES = ("x", "y", "z", "w", "v", "u", "t", "s")
MOST_AXES = len(AXIS_NAMES)


@dataclass(frozen=True, slots=True, order=True)
class Axis:
    """A mesh axis or a part of one: `size` devices with `pre` parts of the axis before (more major than) it."""

    index: int
    pre: int
    size: int

    def overlaps(self, other: "Axis") -> bool:
        """Whether some part of the mesh axis belongs to both."""
        end, other_end = self.pre * self.size, other.pre * other.size
        return self.index == other.index and self.pre < other_end and other.pre < end


@dataclass(frozen=True)
class LogicalMesh:
    """The shape of a logical mesh; its devices are numbered in row-major order."""

    shape: tuple[int, ...]

    @property
    def num_devices(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def axis_names(self) -> tuple[str, ...]:
        if len(self.shape) > len(AXIS_NAMES):
            raise ValueError(f"a logical mesh has at most {len(AXIS_NAMES)} axes, not {len(self.shape)}: {self.shape}")
        return AXIS_NAMES[: len(self.shape)]

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The whole axes that have more than one device."""
        return tuple(Axis(i, 1, size) for i, size in enumerate(self.shape) if size > 1)

    @cached_property
    def runs(self) -> tuple[tuple[Axis, ...], ...]:
        """All runs of adjacent axes: each axis, then two of them, and so on, at last all."""
        axes = self.axes
        return tuple(
            axes[start : start + count] for count in range(1, len(axes) + 1) for start in range(len(axes) - count + 1)
        )

    def coordinate(self, device: int, axis: Axis) -> int:
        """The coordinate of `device` (its row-major number) along `axis`."""
        stride = math.prod(self.shape[axis.index + 1 :])
        full = device // stride % self.shape[axis.index]
        return full // (self.shape[axis.index] // (axis.pre * axis.size)) % axis.size

    def linear_coordinate(self, device: int, axes: Sequence[Axis]) -> int:
        """The number of `device` along `axes` taken together, the first one the most major."""
        result = 0
        for axis in axes:
            result = result * axis.size + self.coordinate(device, axis)
        return result

    def groups(self, axes: Sequence[Axis]) -> list[list[int]]:
        """The devices that differ only along `axes`, each group in the order of `linear_coordinate`."""
        others = self.remaining(axes)
        groups: dict[int, list[tuple[int, int]]] = {}
        for device in range(self.num_devices):
            key = self.linear_coordinate(device, others)
            groups.setdefault(key, []).append((self.linear_coordinate(device, axes), device))
        return [[device for _, device in sorted(members)] for _, members in sorted(groups.items())]

    def remaining(self, axes: Iterable[Axis]) -> tuple[Axis, ...]:
        """The axes, or parts of axes, that `axes` leaves unused, major to minor."""
        used = list(axes)
        result = []
        for whole in self.axes:
            cuts = sorted(
                {1, whole.size, *(c for a in used if a.index == whole.index for c in (a.pre, a.pre * a.size))}
            )
            for low, high in itertools.pairwise(cuts):
                covered = any(a.index == whole.index and a.pre <= low and high <= a.pre * a.size for a in used)
                if not covered:
                    result.append(Axis(whole.index, low, high // low))
        return joined(result)


@dataclass(frozen=True)
class ArraySharding:
    """For each tensor dim, the mesh axes that split it, major to minor."""

    mesh: LogicalMesh
    dims: tuple[tuple[Axis, ...], ...]

    def __reduce__(self) -> Any:
        return ArraySharding, (self.mesh, self.dims)  # without what was computed from them

    @classmethod
    def replicated(cls, mesh: LogicalMesh, rank: int) -> "ArraySharding":
        return _replicated(mesh, rank)

    @cached_property
    def is_replicated(self) -> bool:
        return not any(self.dims)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Every axis that splits some dim."""
        return tuple(axis for dim in self.dims for axis in dim)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """For each dim the number of its shards."""
        return tuple(math.prod(axis.size for axis in axes) for axes in self.dims)

    def num_shards(self, dim: int) -> int:
        return self.counts[dim]

    def local_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of one device's part of an array of `shape`.

        Raises:
            ValueError: the devices along a dim do not divide it.
        """
        if self.is_replicated:
            return tuple(shape)
        for dim, (size, count) in enumerate(zip(shape, self.counts, strict=True)):
            if size % count:
                raise ValueError(f"dim {dim} of size {size} is not divided by its {count} shards")
        return tuple(size // count for size, count in zip(shape, self.counts, strict=True))

    def divides(self, shape: Sequence[int]) -> bool:
        return not any(size % count for size, count in zip(shape, self.counts, strict=True))

    def without_dims(self, dims: Iterable[int]) -> "ArraySharding":
        """The same sharding with `dims` not split."""
        dropped = set(dims)
        return ArraySharding(self.mesh, tuple(() if i in dropped else axes for i, axes in enumerate(self.dims)))

    def dividing(self, shape: Sequence[int]) -> "ArraySharding":
        """The same sharding without the splits that do not divide `shape`."""
        bad = [dim for dim, (size, count) in enumerate(zip(shape, self.counts, strict=True)) if size % count]
        return self.without_dims(bad) if bad else self

    def to_sdy(self) -> str:
        """The text of Shardy's attribute, `#sdy.sharding<@mesh, [...]>`, with closed dims."""
        return self._sdy

    @cached_property
    def _sdy(self) -> str:
        dims = ", ".join(axes_text(self.mesh, axes) for axes in self.dims)
        return f"#sdy.sharding<@{mlir.MESH_SYMBOL}, [{dims}]>"

    @classmethod
    def from_sdy(cls, mesh: LogicalMesh, text: str, rank: int) -> "ArraySharding":
        """Read Shardy's attribute from its text, `#sdy.sharding<@mesh, [{"x"}, {}]>` or the part after the `#`."""
        start = text.index("[")
        dims = parse_axis_lists(mesh, text[start : text.index("]", start) + 1])
        if len(dims) != rank:
            raise ValueError(f"sharding {text} has {len(dims)} dims for a tensor of rank {rank}")
        return cls(mesh, dims)

    def to_proto(self) -> Any:
        """XLA's `OpSharding` with explicit tile assignment (never in iota form, which alpa does not read)."""
        proto = xc.OpSharding()
        if self.is_replicated:
            proto.type = xc.OpSharding.Type.REPLICATED
            return proto
        rest = self.mesh.remaining(self.axes)
        order = [*self.axes, *rest]
        replicas = math.prod(axis.size for axis in rest)
        devices = sorted(range(self.mesh.num_devices), key=lambda d: [self.mesh.coordinate(d, axis) for axis in order])
        proto.type = xc.OpSharding.Type.OTHER
        tiles = [self.num_shards(dim) for dim in range(len(self.dims))]
        proto.replicate_on_last_tile_dim = replicas > 1
        proto.tile_assignment_dimensions = [*tiles, replicas] if replicas > 1 else tiles
        proto.tile_assignment_devices = devices
        return proto

    @classmethod
    def from_proto(cls, mesh: LogicalMesh, proto: Any, rank: int) -> "ArraySharding | None":
        """The sharding that an `OpSharding` describes; None for alpa's "undefined" (type MANUAL).

        Raises:
            ValueError: no assignment of mesh axes to dims gives this sharding.
        """
        kind = xc.OpSharding.Type
        if proto.type in (kind.MANUAL, kind.UNKNOWN):
            return None
        if proto.type == kind.REPLICATED:
            return cls.replicated(mesh, rank)
        if proto.type != kind.OTHER:
            raise ValueError(f"shardings of type {proto.type} are not supported")
        tiles = xc.HloSharding.from_proto(proto)
        dims = list(tiles.tile_assignment_dimensions())
        devices = np.array(tiles.tile_assignment_devices()).reshape(dims)
        if devices.size != mesh.num_devices:
            raise ValueError(f"a sharding over {devices.size} devices does not fit the logical mesh {mesh.shape}")
        coordinates = np.empty((mesh.num_devices, rank), dtype=np.int64)
        for position in np.ndindex(*dims):
            coordinates[devices[position]] = position[:rank]
        return cls(mesh, _axes_of_tiles(mesh, coordinates, dims[:rank]))


@functools.lru_cache(maxsize=1024)
def _replicated(mesh: LogicalMesh, rank: int) -> ArraySharding:
    return ArraySharding(mesh, ((),) * rank)


def tuple_proto(shardings: Iterable[ArraySharding]) -> Any:
    """The `OpSharding` of a tuple of arrays."""
    proto = xc.OpSharding()
    proto.type = xc.OpSharding.Type.TUPLE
    proto.tuple_shardings = [sharding.to_proto() for sharding in shardings]
    return proto


def parse_axes(mesh: LogicalMesh, text: str) -> tuple[Axis, ...]:
    """The axes named in Shardy's text, such as `{"x", "y":(1)2}`; axes of size 1 are left out."""
    result = []
    for name, pre, size in re.findall(r'"(\w+)"(?::\((\d+)\)(\d+))?', text):
        index = mesh.axis_names.index(name)
        axis = Axis(index, int(pre), int(size)) if size else Axis(index, 1, mesh.shape[index])
        if axis.size > 1:
            result.append(axis)
    return tuple(result)


@functools.lru_cache(maxsize=16384)
def parse_axis_lists(mesh: LogicalMesh, text: str) -> tuple[tuple[Axis, ...], ...]:
    """A list of axis lists in Shardy's text, such as `[{"x"}, {}]`."""
    return tuple(parse_axes(mesh, part) for part in re.findall(r"\{[^}]*\}", text))


def axes_text(mesh: LogicalMesh, axes: Sequence[Axis]) -> str:
    """Shardy's text of how a dim is split, `{"x", "y":(1)2}`."""

    def one(axis: Axis) -> str:
        name = f'"{mesh.axis_names[axis.index]}"'
        whole = axis.size == mesh.shape[axis.index]
        return name if whole else f"{name}:({axis.pre}){axis.size}"

    return "{" + ", ".join(one(axis) for axis in axes) + "}"


def merged(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    """The set `axes` with the parts of one mesh axis joined, so that equal sets of devices have equal axes."""
    return joined(sorted(axes))


def joined(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    """`axes` in their order, with neighbouring parts of one mesh axis joined where the second continues the first."""
    result: list[Axis] = []
    for axis in axes:
        if result and result[-1].index == axis.index and result[-1].pre * result[-1].size == axis.pre:
            result[-1] = Axis(axis.index, result[-1].pre, result[-1].size * axis.size)
        else:
            result.append(axis)
    return tuple(result)


def _prime_parts(mesh: LogicalMesh) -> list[Axis]:
    parts = []
    for whole in mesh.axes:
        pre, rest = 1, whole.size
        while rest > 1:
            prime = next(p for p in range(2, rest + 1) if rest % p == 0)
            parts.append(Axis(whole.index, pre, prime))
            pre, rest = pre * prime, rest // prime
    return parts


def _axes_of_tiles(mesh: LogicalMesh, coordinates: np.ndarray, tiles: Sequence[int]) -> tuple[tuple[Axis, ...], ...]:
    """Find the axis parts behind a tile assignment, given as tile coordinates[device, dim]."""
    strides: list[list[tuple[int, Axis]]] = [[] for _ in tiles]
    for part in _prime_parts(mesh):
        step = mesh.shape[part.index] // (part.pre * part.size) * math.prod(mesh.shape[part.index + 1 :])
        delta = coordinates[step] - coordinates[0]
        for dim in np.flatnonzero(delta):
            strides[dim].append((int(delta[dim]), part))
    dims = tuple(joined(part for _, part in sorted(split, key=lambda item: -item[0])) for split in strides)
    for device in range(mesh.num_devices):
        for dim, axes in enumerate(dims):
            if mesh.linear_coordinate(device, axes) != coordinates[device, dim]:
                raise ValueError(f"tile assignment {tiles} does not follow the axes of the logical mesh {mesh.shape}")
    return dims
