"""Make one collective of several that do not need each other, as XLA's combiners do on GPUs.

Input: one device's program. All-reduces (of one reducer), all-gathers and reduce-scatters over the same groups and of
one element type are combined, in program order, up to a size; StableHLO's all-reduce and all-gather take several
arrays, and for a reduce-scatter the arrays are concatenated. A combined op stands where the last of its inputs is
ready, and what used the first ones comes after it. Invariant: every value of the program stays the same.
"""

import heapq
import itertools
import math
from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.builders import reshaped, transposed, typed
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.op_kinds import region_reducer
from alpa_cfp.spmd.module.combiner_limits import CombinerLimits
from alpa_cfp.spmd.module.partitioned import group_size, size_bytes

_ALL_REDUCE, _ALL_GATHER, _REDUCE_SCATTER = (
    f"stablehlo.{name}" for name in ("all_reduce", "all_gather", "reduce_scatter")
)


def combine_collectives(block: Any, limits: CombinerLimits) -> None:
    """Combine the collectives of `block`, in place."""
    operations = mlir.block_operations(block)
    keyed = [(op, key) for op in operations if (key := _key(op)) is not None]
    if len(keyed) < 2:
        return
    collectives, keys = [op for op, _ in keyed], [key for _, key in keyed]
    groups = _Groups(operations, collectives)
    for name in (_ALL_REDUCE, _ALL_GATHER, _REDUCE_SCATTER):
        limit_bytes = limits.all_gather_bytes if name == _ALL_GATHER else limits.all_reduce_bytes
        # For each key, as bits, the collectives that others may be combined with.
        open_masks: dict[tuple[Any, ...], int] = {}
        for i, op in enumerate(collectives):
            if op.name != name or (name == _REDUCE_SCATTER and size_bytes(op.operands[0]) > limits.scattered_bytes):
                continue
            groups.join_first(open_masks.get(keys[i], 0), i, limit_bytes)
            open_masks[keys[i]] = open_masks.get(keys[i], 0) | 1 << i
    combined = [members for members in groups.members if len(members) > 1]
    for members in combined:
        _COMBINE[collectives[members[0]].name]([collectives[i] for i in members])
    if combined:
        _sort(block)


def _key(op: Operation) -> tuple[Any, ...] | None:
    """A key that collectives which can be combined share; None for an op that is not combined."""
    if op.name not in _COMBINE or len(op.operands) != 1:
        return None
    reducer = region_reducer(op) if len(op.regions) else ""
    element_type = mlir.tensor_type(op.operands[0]).element_type
    dims = [mlir.integer(op, name) for name in ("all_gather_dim", "scatter_dimension") if name in op.attributes]
    return None if reducer is None else (str(op.attributes["replica_groups"]), str(element_type), reducer, *dims)


class _Groups:
    """Collectives, by number, in groups that become one op each.

    Attributes:
        of: The group of each collective.
        members: The collectives of each group, in program order; empty for a group that has joined another.
    """

    def __init__(self, operations: Sequence[Operation], collectives: Sequence[Operation]):
        self.of = list(range(len(collectives)))
        self.members = [[i] for i in self.of]
        self._bytes = [sum(map(size_bytes, op.results)) for op in collectives]
        self._masks = [1 << i for i in self.of]
        # For each group, as bits, the collectives that come before it by what they need and whom they are combined
        # with: with each of them all of its group, and all that comes before that.
        self._behind = _needs(operations, collectives)

    def join_first(self, candidates: int, collective: int, limit_bytes: int) -> None:
        """Put `collective` into the first group of which neither needs the other, if the limit allows it.

        Args:
            candidates: The members of the groups, as bits.
            collective: One that is in no group with others.
            limit_bytes: The most that a group may have.
        """
        own = self.of[collective]
        rest = candidates & ~self._behind[own]
        while rest:
            group = self.of[(rest & -rest).bit_length() - 1]
            rest &= ~self._masks[group]
            within = self._bytes[group] + self._bytes[own] <= limit_bytes
            if within and not self._behind[group] & self._masks[own]:
                self._join(group, own)
                return

    def _join(self, group: int, own: int) -> None:
        for i in self.members[own]:
            self.of[i] = group
        self.members[group] += self.members[own]
        self._masks[group] |= self._masks[own]
        self._behind[group] |= self._behind[own]
        self._bytes[group] += self._bytes[own]
        self.members[own] = []
        mask, behind = self._masks[group], self._masks[group] | self._behind[group]
        for other, members in enumerate(self.members):
            if members and self._behind[other] & mask:
                self._behind[other] |= behind


def _needs(operations: Sequence[Operation], collectives: Sequence[Operation]) -> list[int]:
    """For each collective, as bits, the collectives whose results it needs, also through others."""
    numbers = {op: i for i, op in enumerate(collectives)}
    of_value: dict[Value, int] = {}
    needs = [0] * len(collectives)
    for op in operations:
        mask = 0
        for operand in mlir.operands_deep(op):
            mask |= of_value.get(operand, 0)
        if (number := numbers.get(op)) is not None:
            needs[number] = mask
            mask |= 1 << number
        if mask:
            of_value.update((result, mask) for result in op.results)
    return needs


def _combine_all_reduces(ops: Sequence[Operation]) -> None:
    # Arrays first: alpa takes an all-reduce whose first operand is a scalar for one of scalars only.
    ops = sorted(ops, key=lambda op: not mlir.tensor_type(op.operands[0]).rank)
    values = [op.operands[0] for op in ops]
    first = ops[0]
    # Without a channel: XLA finds no layout for an all-reduce of several arrays that has one.
    attributes = {"replica_groups": first.attributes["replica_groups"]}
    with ir.InsertionPoint(first), first.location:
        new = mlir.create(_ALL_REDUCE, [v.type for v in values], values, attributes, reducer=region_reducer(first))
    _replace(ops, list(new.results))


def _combine_all_gathers(ops: Sequence[Operation]) -> None:
    # What is gathered for one use and again for another is there for both now.
    distinct: dict[tuple[Value, int], Operation] = {}
    for op in ops:
        same = distinct.setdefault((op.operands[0], mlir.integer(op, "all_gather_dim")), op)
        if same != op:
            _replace([op], [same.results[0]])
    ops = list(distinct.values())
    first = ops[0]
    count = group_size(first)
    with ir.InsertionPoint(first), first.location:
        # As arrays of one dim, which have one layout: XLA on CPUs lets the first of several arrays have any layout in
        # which its gathered dim comes first, and gives it to the others, of which theirs may not.
        values = [reshaped(op.operands[0], [math.prod(mlir.tensor_shape(op.operands[0]))]) for op in ops]
        types = [typed(value, [count * mlir.tensor_shape(value)[0]]) for value in values]
        attributes = mlir.attributes_of(first) | {"all_gather_dim": mlir.i64(0)}
        stacked = mlir.create(_ALL_GATHER, types, values, attributes).results
        gathered = [_result_of_parts(value, op, count) for value, op in zip(stacked, ops, strict=True)]
    _replace(ops, gathered)


def _result_of_parts(value: Value, op: Operation, count: int) -> Value:
    """The result of the all-gather `op`, made of its parts one after the other in one dim."""
    parts = reshaped(value, [count, *mlir.tensor_shape(op.operands[0])])
    return reshaped(_move_dim(parts, 0, mlir.integer(op, "all_gather_dim")), mlir.tensor_shape(op.results[0]))


def _combine_reduce_scatters(ops: Sequence[Operation]) -> None:
    first, count = ops[0], group_size(ops[0])
    with ir.InsertionPoint(first), first.location:
        blocks = [_blocks(op.operands[0], mlir.integer(op, "scatter_dimension"), count) for op in ops]
        widths = [mlir.tensor_shape(block)[1] for block in blocks]
        joined = stablehlo.concatenate(blocks, 1)
        attributes = mlir.attributes_of(first) | {"scatter_dimension": mlir.i64(0)}
        result = typed(joined, [1, sum(widths)])
        row = mlir.create(_REDUCE_SCATTER, [result], [joined], attributes, reducer=region_reducer(first)).results[0]
        starts = itertools.accumulate(widths, initial=0)
        parts = [
            reshaped(stablehlo.slice(row, [0, start], [1, start + width], [1, 1]), mlir.tensor_shape(op.results[0]))
            for op, start, width in zip(ops, starts, widths, strict=False)
        ]
    _replace(ops, parts)


_COMBINE = {
    _ALL_REDUCE: _combine_all_reduces,
    _ALL_GATHER: _combine_all_gathers,
    _REDUCE_SCATTER: _combine_reduce_scatters,
}


def _blocks(value: Value, dim: int, count: int) -> Value:
    """`value` as [count, elements]: row i has what part i of dim `dim` holds."""
    shape = list(mlir.tensor_shape(value))
    cut = reshaped(value, [*shape[:dim], count, shape[dim] // count, *shape[dim + 1 :]])
    return reshaped(_move_dim(cut, dim, 0), [count, math.prod(shape) // count])


def _move_dim(value: Value, source: int, target: int) -> Value:
    permutation = [dim for dim in range(len(mlir.tensor_shape(value))) if dim != source]
    permutation.insert(target, source)
    return transposed(value, permutation)


def _replace(ops: Sequence[Operation], values: Sequence[Value]) -> None:
    for op, value in zip(ops, values, strict=True):
        mlir.replace(op, value)


def _sort(block: Any) -> None:
    """Put the ops of `block` into an order in which each comes after what it uses; else the order stays as it is."""
    *ops, last = mlir.block_operations(block)
    makers = {result: i for i, op in enumerate(ops) for result in op.results}
    users: list[list[int]] = [[] for _ in ops]
    missing = [0] * len(ops)
    for i, op in enumerate(ops):
        used = {makers[value] for value in mlir.operands_deep(op) if value in makers}
        missing[i] = len(used)
        for number in used:
            users[number].append(i)
    ready = [i for i, count in enumerate(missing) if not count]
    while ready:
        i = heapq.heappop(ready)
        ops[i].move_before(last)
        for user in users[i]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, user)
