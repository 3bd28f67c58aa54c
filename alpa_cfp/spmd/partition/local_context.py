"""The state of rewriting a global program into one device's program.

`LocalContext` records the sharding of every value and which values are partial sums, and builds the few ops that depend
on which device runs them. Invariant: every partial sum goes into exactly the reduction over the mesh axes that it is
partial over, or is one whose reduction was deferred.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.builders import compare, constant, converted, dtype_of, index, reshaped, typed
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.module.partitioned import UnsupportedByShardyError
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis, LogicalMesh, merged


@dataclass(frozen=True, slots=True)
class Partial:
    """A value that is still to be reduced over `axes` (as `merged` gives them) with `stablehlo.<reducer>`."""

    axes: tuple[Axis, ...]
    reducer: str


class LocalContext:
    """The state of one rewriting.

    Attributes:
        mesh: The logical mesh.
        random_state: The hidden parameter that the program's random numbers come from, where it draws any.
        random_op_numbers: Numbers the random ops in the order of the program.
    """

    def __init__(self, mesh: LogicalMesh, block: Any, random_state: Value | None = None):
        self.mesh = mesh
        self._block = block
        self._shardings: dict[Value, ArraySharding] = {}
        self._partials: dict[Value, Partial] = {}
        self._reduced: dict[Value, tuple[Axis, ...]] = {}
        self._deferred: set[Value] = set()
        self._coordinates: dict[tuple[Axis, ...], Value] = {}
        self.random_state = random_state
        self.random_op_numbers = itertools.count()
        self._channels = itertools.count(1)

    # Shardings

    def sharding(self, value: Value) -> ArraySharding:
        return self._shardings[value]

    def known_sharding(self, value: Value) -> ArraySharding | None:
        """The sharding of `value`, or None for a value inside a region, which has none of its own."""
        return self._shardings.get(value)

    def set_sharding(self, value: Value, sharding: ArraySharding) -> None:
        """Record the sharding of `value`."""
        self._shardings[value] = sharding

    def localize(self, value: Value, sharding: ArraySharding) -> None:
        """Record the sharding of `value` and give it the type of one device's part.

        Raises:
            UnsupportedByShardyError: the sharding does not divide the value.
        """
        if not sharding.is_replicated:
            value.set_type(self.local_type(value.type, sharding))
        self.set_sharding(value, sharding)

    def local_type(self, global_type: Any, sharding: ArraySharding) -> Any:
        tensor = ir.RankedTensorType(global_type)
        return ir.RankedTensorType.get(self.local_shape(tensor.shape, sharding), tensor.element_type)

    @staticmethod
    def local_shape(shape: Sequence[int], sharding: ArraySharding) -> tuple[int, ...]:
        """The shape of one device's part of an array of `shape`.

        Raises:
            UnsupportedByShardyError: the sharding does not divide it.
        """
        try:
            return sharding.local_shape(shape)
        except ValueError as error:
            raise UnsupportedByShardyError(str(error)) from error

    def replace(self, op: Operation, value: Value) -> None:
        """Let `value` stand for the one result of `op`, and erase `op`.

        Raises:
            UnsupportedByShardyError: the value is not of the type of one device's part of the result.
        """
        (sharding,), (result,) = annotations.result_shardings(op, self.mesh), op.results
        if value.type != self.local_type(result.type, sharding):
            raise UnsupportedByShardyError(f"{op.name}: a part of {result.type} became {value.type}")
        self.set_sharding(value, sharding)
        mlir.replace(op, value)

    # Partial sums

    def mark_partial(self, value: Value, axes: Sequence[Axis], reducer: str) -> None:
        """Record that `value`, whose sharding is known, is still to be reduced over `axes`.

        Raises:
            UnsupportedByShardyError: one of `axes` also splits the value, so that its parts do not belong together.
        """
        if any(axis.overlaps(own) for axis in axes for own in self.sharding(value).axes):
            raise UnsupportedByShardyError(f"a value is partial over {axes}, along which it is split")
        if axes:
            self._partials[value] = Partial(merged(axes), reducer)

    def take_partial(self, value: Value, axes: Sequence[Axis]) -> str:
        """The reducer of the partial value `value`, which is now reduced over `axes`."""
        reducer, rest = self.take_part(value, axes)
        if rest:
            raise UnsupportedByShardyError(f"a reduction over {axes} of a value that is partial over {rest} as well")
        return reducer

    def take_part(self, value: Value, axes: Sequence[Axis]) -> tuple[str, tuple[Axis, ...]]:
        """The reducer of `value`, which is now reduced over `axes`, and the axes over which it is still partial.

        Raises:
            UnsupportedByShardyError: the value is not partial over all of `axes`.
        """
        partial = self._partials.get(value)
        kept = self.mesh.remaining(partial.axes) if partial else self.mesh.axes
        if partial is None or any(axis.overlaps(other) for axis in axes for other in kept):
            raise UnsupportedByShardyError(f"a reduction over {axes} of a value that is partial over {partial}")
        return partial.reducer, self.mesh.remaining([*kept, *axes])

    def mark_reduced(self, value: Value, axes: Sequence[Axis]) -> None:
        """Record that `value` is reduced over `axes` already, where Shardy has put a reduction behind it."""
        self._reduced[value] = merged(axes)

    def is_reduced(self, value: Value, axes: Sequence[Axis]) -> bool:
        return self._reduced.get(value) == merged(axes)

    def defer(self, value: Value) -> None:
        """Let ordinary ops use the partial sum `value`: `grad_sync` has shown that its sum can be made later."""
        self._deferred.add(value)

    def require_reduced(self, op: Operation) -> None:
        """Raises UnsupportedByShardyError where `op`, or an op in it, uses a value that is still partial.

        After a deferred reduction a value counts as reduced.
        """
        if not self._partials:
            return
        for operand in mlir.operands_deep(op):
            if operand in self._partials and operand not in self._deferred:
                raise UnsupportedByShardyError(f"{op.name} uses a partial sum that was not reduced")

    # Values that depend on the device

    def coordinate(self, axes: Sequence[Axis]) -> Value:
        """This device's number along `axes` (i32 scalar), made once at the start of the program."""
        key = tuple(axes)
        if key not in self._coordinates:
            with ir.InsertionPoint.after(self._device_id.owner):
                table = [self.mesh.linear_coordinate(device, key) for device in range(self.mesh.num_devices)]
                one = stablehlo.dynamic_slice(constant(np.array(table, dtype=np.int32)), [self._device_id], [1])
                self._coordinates[key] = reshaped(one, [])
        return self._coordinates[key]

    @cached_property
    def _device_id(self) -> Value:
        """This device's number (i32 scalar), made once at the start of the program."""
        with ir.InsertionPoint.at_block_begin(self._block):
            return converted(stablehlo.replica_id(), ir.IntegerType.get_signless(32))

    def offset(self, axes: Sequence[Axis], local_size: int) -> Value:
        """The start (i32 scalar) of this device's part in a dim that `axes` split into parts of `local_size`."""
        return stablehlo.multiply(self.coordinate(axes), index(local_size)) if axes else index(0)

    def on_first(self, value: Value, axes: Sequence[Axis], elsewhere: int = 0) -> Value:
        """`value` on the devices whose coordinate along `axes` is 0, the number `elsewhere` on the others."""
        zero = index(0)
        first = compare(self.coordinate(axes), zero, "EQ")
        others = constant(np.full(mlir.tensor_shape(value), elsewhere, dtype_of(value)))
        return stablehlo.select(first, value, others)

    # Communication

    def channel(self, groups: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Attributes of a new collective of `groups`."""
        channel = f"#stablehlo.channel_handle<handle = {next(self._channels)}, type = 1>"
        return {
            "replica_groups": mlir.dense(np.array(groups, dtype=np.int64)),
            "channel_handle": mlir.attribute(channel),
            "use_global_device_ids": ir.UnitAttr.get(),
        }

    def all_reduce(self, operand: Value, axes: Sequence[Axis], reducer: str) -> Value:
        """`operand` reduced over `axes`, at the current insertion point."""
        attributes = self.channel(self.mesh.groups(axes))
        return mlir.create("stablehlo.all_reduce", [operand.type], [operand], attributes, reducer=reducer).results[0]

    def all_gather(self, value: Value, split: Sequence[Sequence[Axis]]) -> Value:
        """The devices' parts of `value` along the axes given for each dim, put together in that dim, at the current
        insertion point."""
        for dim, axes in enumerate(split):
            if axes:
                groups = self.mesh.groups(axes)
                shape = list(mlir.tensor_shape(value))
                shape[dim] *= len(groups[0])
                attributes = self.channel(groups) | {"all_gather_dim": mlir.i64(dim)}
                value = mlir.create("stablehlo.all_gather", [typed(value, shape)], [value], attributes).results[0]
        return value
