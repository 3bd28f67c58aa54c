"""How a value is split over a logical mesh of two axes, in the small form that the ILP is built with.

A `Spec` has one code for each tensor dim: `NONE`, `FIRST` (split along axis 0), `SECOND` (axis 1) or `BOTH` (along both
axes, axis 0 the more major one: what Alpa calls a 1D sharding on a 2D mesh). `BOTH_SWAPPED`, with axis 1 the more major
one, is no strategy; reduce-scatters lead to it. Invariants: an axis splits at most one
dim, and an axis of one device splits none, so equal placements have equal specs. The rules by which specs go through
ops follow XLA's hlo_sharding_util and tensorflow-alpa's auto_sharding_util.cc.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh

Spec = tuple[int, ...]

NONE, FIRST, SECOND, BOTH, BOTH_SWAPPED = 0, 1, 2, 3, 4
_AXES = {NONE: (), FIRST: (0,), SECOND: (1,), BOTH: (0, 1), BOTH_SWAPPED: (1, 0)}
_CODES = {axes: code for code, axes in _AXES.items()}


@dataclass(frozen=True)
class Mesh:
    """A logical mesh of two axes, with what is asked of it often.

    Attributes:
        shape: Devices along each axis.
    """

    shape: tuple[int, int]

    @cached_property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """The number of parts for each code."""
        first, second = self.shape
        return (1, first, second, first * second, first * second)

    @property
    def num_devices(self) -> int:
        return self.sizes[BOTH]

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """The axes with more than one device."""
        return tuple(axis for axis in (0, 1) if self.shape[axis] > 1)

    @property
    def is_2d(self) -> bool:
        return len(self.axes) == 2

    def code(self, axis: int) -> int:
        """The code of a dim that is split along `axis`."""
        return (FIRST, SECOND)[axis] if self.shape[axis] > 1 else NONE

    @cached_property
    def code_1d(self) -> int:
        """The code of a dim that is split over all devices."""
        return self.code(0) | self.code(1)

    def tile(self, rank: int, dims: Sequence[int], axes: Sequence[int]) -> Spec:
        """Split `dims` along `axes`, pairwise."""
        codes = [NONE] * rank
        for dim, axis in zip(dims, axes, strict=True):
            codes[dim] = self.code(axis)
        return tuple(codes)

    def tile_1d(self, rank: int, dim: int) -> Spec:
        """Split one dim over all devices."""
        return tuple(self.code_1d if i == dim else NONE for i in range(rank))

    def num_tiles(self, spec: Spec) -> int:
        """The number of different parts of a value."""
        tiles = 1
        for code in spec:
            tiles *= self.sizes[code]
        return tiles

    def is_mixed(self, spec: Spec) -> bool:
        """Whether one dim is split along both axes of a 2D mesh."""
        return self.is_2d and BOTH in spec

    def axis_of_dims(self, spec: Spec) -> tuple[int, ...]:
        """For each dim the axis that splits it, -1 for none; a dim that is split along both counts as along axis 0."""
        return tuple({NONE: -1, FIRST: 0, SECOND: 1, BOTH: 0}[code] for code in spec)

    def axes_of_codes(self, codes: Iterable[int]) -> tuple[int, ...]:
        """The axes along which dims of these codes are split."""
        return tuple(axis for code in codes for axis in _AXES[code] if self.shape[axis] > 1)

    def without_axes(self, spec: Spec, axes: Collection[int]) -> Spec:
        """`spec` with nothing split along `axes`."""
        return tuple(_CODES[tuple(axis for axis in _AXES[code] if axis not in axes)] for code in spec)

    def uneven_axes(self, spec: Spec, shape: Sequence[int]) -> frozenset[int]:
        """The axes that split a dim of `shape` into parts that are not all equal."""
        uneven = (code for size, code in zip(shape, spec, strict=True) if size % self.sizes[code])
        return frozenset(self.axes_of_codes(uneven))

    def to_sharding(self, spec: Spec, logical_mesh: LogicalMesh) -> ArraySharding:
        """The same placement as an `ArraySharding`."""
        axes = {axis.index: axis for axis in logical_mesh.axes}
        return ArraySharding(logical_mesh, tuple(tuple(axes[i] for i in _AXES[code] if i in axes) for code in spec))

    def of_sharding(self, sharding: ArraySharding) -> Spec | None:
        """The spec of an `ArraySharding`; None where it splits along parts of axes."""
        codes = []
        for split in sharding.dims:
            if any(axis.size != sharding.mesh.shape[axis.index] for axis in split):
                return None
            codes.append(_CODES.get(tuple(axis.index for axis in split)))
        return None if None in codes else tuple(codes)


def replicated(rank: int) -> Spec:
    """The spec of a value that is not split."""
    return (NONE,) * rank


def is_replicated(spec: Spec) -> bool:
    """Whether a value is not split."""
    return not any(spec)


def same_placement(a: Spec, b: Spec) -> bool:
    """Whether specs, maybe of values of different rank, are equal as XLA's shardings are."""
    return a == b or (is_replicated(a) and is_replicated(b))


def transpose(spec: Spec, permutation: Sequence[int]) -> Spec:
    """The spec of `transpose(x)`, where `x` has `spec`."""
    return tuple(spec[dim] for dim in permutation)


def broadcast(spec: Spec, source_shape: Sequence[int], shape: Sequence[int], dims: Sequence[int]) -> Spec:
    """The spec of `broadcast_in_dim(x)`: dim `i` of `x` becomes `dims[i]`; new and stretched dims are not split."""
    codes = [NONE] * len(shape)
    for source, dim in enumerate(dims):
        if source_shape[source] == shape[dim]:
            codes[dim] = spec[source]
    return tuple(codes)


def keep_unchanged_dims(spec: Spec, before: Sequence[int], after: Sequence[int]) -> Spec | None:
    """The spec behind an op that works on each dim by itself (slice, pad); None if a split dim changes its size."""
    changed = any(code and old != new for code, old, new in zip(spec, before, after, strict=True))
    return None if changed else spec


def keep_window_dims(spec: Spec, window: Sequence[int]) -> Spec | None:
    """The spec behind an op that slides a window; None if the window is wider than one along a split dim."""
    return None if any(code and size != 1 for code, size in zip(spec, window, strict=True)) else spec


def reshape(mesh: Mesh, spec: Spec, before: Sequence[int], after: Sequence[int]) -> Spec | None:
    """The spec of `reshape(x)`; None if no spec is found that places the elements in the same way.

    A reshape may add and drop dims of size 1, merge dims of which only the most major is split, and split dims. Uneven
    parts go through only along dims that keep their size: they would not meet the borders of the other ones.
    """
    sources = [(size, code) for size, code in zip(before, spec, strict=True)][::-1]
    targets = list(after)[::-1]
    result: list[int] = []
    while targets and any(code for _, code in sources):
        size, code = sources.pop()
        target = targets.pop()
        if size == target:
            result.append(code)
        elif target == 1:
            result.append(NONE)
            sources.append((size, code))
        elif size == 1:
            if code:  # the one element is on one device alone
                return None
            targets.append(target)
        elif size > target:
            split = _split(mesh, size, code, target)
            if split is None:
                return None
            result.append(split[0])
            sources.append((size // target, split[1]))
        else:
            if not sources:
                return None
            next_size, next_code = sources.pop()
            merged = _merge(mesh, size, code, next_size, next_code)
            if merged is None:
                return None
            sources.append((size * next_size, merged))
            targets.append(target)
    if any(code for _, code in sources):
        return None
    return (*result, *(NONE for _ in targets))


def _split(mesh: Mesh, size: int, code: int, target: int) -> tuple[int, int] | None:
    """The codes of the two dims into which a dim of `size` is split, the major one of size `target`."""
    parts = mesh.sizes[code]
    if size % target or size % parts:
        return None
    if target % parts == 0:
        return code, NONE
    if code == BOTH and target == mesh.sizes[FIRST]:
        return FIRST, SECOND
    return None


def _merge(mesh: Mesh, size: int, code: int, next_size: int, next_code: int) -> int | None:
    """The code of the dim that two neighbours become."""
    if not next_code:
        return code if size % mesh.sizes[code] == 0 else None
    if size != mesh.sizes[code] or next_size % mesh.sizes[next_code] or (code, next_code) != (FIRST, SECOND):
        return None
    return BOTH
