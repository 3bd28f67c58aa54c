"""What the rewriting of a global program into one device's program keeps track of.

`LocalContext` knows the sharding of every value and which values are partial sums, and builds the few ops that depend
on which device runs them. Invariant: every partial sum goes into exactly the
reduction over the mesh axes that it is partial over, or is one whose reduction was deferred.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.builders import binary, compare, constant, tensor_type_of
from alpa_cfp.spmd.ir.element_types import numpy_dtype
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
    """The state of one rewriting."""

    def __init__(self, mesh: LogicalMesh, block: Any, random_state: Value | None = None):
        self.mesh = mesh
        self._block = block
        self._shardings: dict[Value, ArraySharding] = {}
        self._partials: dict[Value, Partial] = {}
        self._reduced: dict[Value, tuple[Axis, ...]] = {}
        self._deferred: set[Value] = set()
        self._coordinates: dict[tuple[Axis, ...], Value] = {}
        self._device_id: Value | None = None
        self._channels = 0
        self._random_state = random_state
        self._random_numbers = 0

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
        value.set_type(self.local_type(value.type, sharding))
        self.set_sharding(value, sharding)

    def local_type(self, global_type: Any, sharding: ArraySharding) -> Any:
        tensor = ir.RankedTensorType(global_type)
        try:
            shape = sharding.local_shape(tensor.shape)
        except ValueError as error:
            raise UnsupportedByShardyError(str(error)) from error
        return ir.RankedTensorType.get(shape, tensor.element_type)

    def replace(self, op: Operation, values: Sequence[Value]) -> None:
        """Let `values` stand for the results of `op`, and erase `op`.

        Raises:
            UnsupportedByShardyError: a value is not of the type of one device's part of the result.
        """
        shardings = annotations.result_shardings(op, self.mesh)
        for result, value, sharding in zip(op.results, values, shardings, strict=True):
            if value.type != self.local_type(result.type, sharding):
                raise UnsupportedByShardyError(f"{op.name}: a part of {result.type} became {value.type}")
            result.replace_all_uses_with(value)
            self.set_sharding(value, sharding)
        op.erase()

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

    def is_partial(self, value: Value) -> bool:
        return value in self._partials

    def defer(self, value: Value) -> None:
        """Let ordinary ops use the partial sum `value`: `grad_sync` has shown that its sum can be made later."""
        self._deferred.add(value)

    def is_deferred(self, value: Value) -> bool:
        return value in self._deferred

    def require_reduced(self, op: Operation, operands: Sequence[Value]) -> None:
        """Raises UnsupportedByShardyError where an ordinary op uses a value that is still partial."""
        for operand in operands:
            if operand in self._partials and operand not in self._deferred:
                raise UnsupportedByShardyError(f"{op.name} uses a partial sum that was not reduced")

    # Values that depend on the device

    def coordinate(self, axes: Sequence[Axis]) -> Value:
        """This device's number along `axes` (i32 scalar), made once at the start of the program."""
        key = tuple(axes)
        if key not in self._coordinates:
            with self._after_device_id():
                table = [self.mesh.linear_coordinate(device, key) for device in range(self.mesh.num_devices)]
                values = constant(np.array(table, dtype=np.int32))
                one = mlir.create(
                    "stablehlo.dynamic_slice",
                    [tensor_type_of([1], "i32")],
                    [values, self._device_id],
                    {"slice_sizes": ir.DenseI64ArrayAttr.get([1])},
                ).results[0]
                self._coordinates[key] = mlir.create("stablehlo.reshape", [tensor_type_of([], "i32")], [one]).results[0]
        return self._coordinates[key]

    def _after_device_id(self) -> Any:
        """An insertion point after the ops that read the device's number, before the program's own ops."""
        if self._device_id is None:
            with ir.InsertionPoint.at_block_begin(self._block):
                replica = mlir.create("stablehlo.replica_id", [tensor_type_of([], "ui32")], []).results[0]
                self._device_id = mlir.create("stablehlo.convert", [tensor_type_of([], "i32")], [replica]).results[0]
        converted = mlir.defining_op(self._device_id)
        following = mlir.block_operations(self._block)
        return ir.InsertionPoint(following[following.index(converted) + 1])

    def offset(self, axes: Sequence[Axis], local_size: int, like: Any = None) -> Value:
        """Where this device's part starts in a dim that `axes` split into parts of `local_size`.

        A scalar of element type `like`, by default i32.
        """
        return binary("multiply", self.coordinate(axes), constant(np.array(local_size, np.int32)), like)

    def on_first(self, value: Value, axes: Sequence[Axis], elsewhere: int = 0) -> Value:
        """`value` on the devices whose coordinate along `axes` is 0, the number `elsewhere` on the others."""
        tensor = mlir.tensor_type(value)
        zero = constant(np.array(0, np.int32))
        first = compare(self.coordinate(axes), zero, "EQ")
        others = constant(np.full(tensor.shape, elsewhere, numpy_dtype(tensor.element_type)))
        return mlir.create("stablehlo.select", [tensor], [first, value, others]).results[0]

    def random_state(self) -> Value:
        """The hidden parameter that the program's random numbers come from."""
        if self._random_state is None:
            raise ValueError("the program draws random numbers and has no parameter for the random state")
        return self._random_state

    def next_random_number(self) -> int:
        """The number, in the program, of the random op that is being rewritten."""
        self._random_numbers += 1
        return self._random_numbers - 1

    # Communication

    def channel(self, groups: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Attributes of a new collective of `groups`."""
        self._channels += 1
        return {
            "replica_groups": mlir.dense(np.array(groups, dtype=np.int64)),
            "channel_handle": ir.Attribute.parse(f"#stablehlo.channel_handle<handle = {self._channels}, type = 1>"),
            "use_global_device_ids": ir.UnitAttr.get(),
        }

    def all_reduce(self, operand: Value, axes: Sequence[Axis], reducer: str) -> Value:
        """`operand` reduced over `axes`, at the current insertion point."""
        attributes = self.channel(self.mesh.groups(axes))
        op = ir.Operation.create(
            "stablehlo.all_reduce", results=[operand.type], operands=[operand], attributes=attributes, regions=1
        )
        mlir.create_reducer(op, reducer, mlir.tensor_type(operand).element_type)
        return op.results[0]

    def all_gather(self, value: Value, dim: int, axes: Sequence[Axis]) -> Value:
        """The devices' parts of `value` along `axes`, one after the other in `dim`, at the current insertion point."""
        groups = self.mesh.groups(axes)
        shape = list(mlir.tensor_shape(value))
        shape[dim] *= len(groups[0])
        result = ir.RankedTensorType.get(shape, mlir.tensor_type(value).element_type)
        along = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)
        attributes = self.channel(groups) | {"all_gather_dim": along}
        return mlir.create("stablehlo.all_gather", [result], [value], attributes).results[0]
