"""Which dim of each value is the batch dim: from the first contraction of the program forwards, then backwards.

Takes a graph, gives a dict from instruction to dim; values without an entry have no batch dim that was found. The rules
are those of `BuildInstructionBatchDimMap` in tensorflow-alpa's auto_sharding_util.cc: dim 0 of the first dot or
convolution (of the program, and of each stage that a pipeline marker starts) is the batch dim.

Which one is the first is not the same: Alpa had the order of a scheduler, which goes for the deepest result first. In
the order of the program a backward stage may begin with the gradient of a weight, of which no dim is the batch. So a
contraction over what is known to be the batch dim is passed over.
"""

from collections.abc import Callable

from alpa_on_jax.xla_extension.auto_sharding.graph import Graph, Instruction
from alpa_on_jax.xla_extension.auto_sharding.opcodes import ELEMENTWISE

BatchDims = dict[Instruction, int]

# Ops whose operands and result have the same dims, each for itself.
_DIMWISE = ELEMENTWISE | {
    "reverse", "pad", "slice", "concatenate", "dynamic_slice", "dynamic_update_slice", "reduce_window",
    "select_and_scatter",
}  # fmt: skip


def find_batch_dims(graph: Graph) -> BatchDims:
    """The batch dims of `graph`."""
    batch: BatchDims = {}
    for contractions in _contractions_of_stages(graph):
        _propagate_forward(graph, batch)
        source = next((each for each in contractions if not _contracts_batch(each, batch)), None)
        if source is not None:
            batch.setdefault(source, 0)
        _propagate_forward(graph, batch)
        for instruction in reversed(graph.instructions):
            backward = _BACKWARD.get(instruction.opcode)
            if backward is not None and instruction in batch:
                backward(instruction, batch)
    return batch


def _propagate_forward(graph: Graph, batch: BatchDims) -> None:
    for instruction in graph.instructions:
        forward = _FORWARD.get(instruction.opcode)
        dim = forward(instruction, batch) if forward is not None else None
        if dim is not None:
            batch[instruction] = dim


def _contractions_of_stages(graph: Graph) -> list[list[Instruction]]:
    """The contractions before the first start marker, and those behind each; nothing where there are none."""
    stages: list[list[Instruction]] = [[]]
    for instruction in graph.instructions:
        if instruction.opcode in ("dot_general", "convolution"):
            stages[-1].append(instruction)
        # A start marker is an instruction for each value that goes through.
        if instruction.stage.endswith("$start") and stages[-1]:
            stages.append([])
    return [stage for stage in stages if stage]


def _contracts_batch(instruction: Instruction, batch: BatchDims) -> bool:
    """Whether it sums over the batch dim of an operand, as the gradient of a weight does."""
    if instruction.dot is not None:
        contracted = instruction.dot.lhs_contracting, instruction.dot.rhs_contracting
    else:
        assert instruction.conv is not None
        contracted = instruction.conv.lhs_feature, instruction.conv.rhs_in_feature
    return any(batch.get(operand) == dim for operand, dim in zip(instruction.operands, contracted, strict=True))


def _same_dim(a: Instruction, b: Instruction, dim: int) -> bool:
    return a.rank == b.rank and a.shape[dim] == b.shape[dim]


def _same_leading_dims(a: Instruction, b: Instruction, count: int) -> bool:
    """Whether the dims before `count` are equal; the dim there may have been split or merged."""
    return count < min(a.rank, b.rank) and a.shape[:count] == b.shape[:count]


def _forward_dimwise(instruction: Instruction, batch: BatchDims) -> int | None:
    for operand in dict.fromkeys(instruction.operands):
        if operand in batch and _same_dim(operand, instruction, batch[operand]):
            return batch[operand]
    return None


def _backward_dimwise(instruction: Instruction, batch: BatchDims) -> None:
    dim = batch[instruction]
    for operand in instruction.operands:
        if operand not in batch and _same_dim(operand, instruction, dim):
            batch[operand] = dim


def _forward_broadcast(instruction: Instruction, batch: BatchDims) -> int | None:
    (operand,) = instruction.operands
    if operand not in batch or batch[operand] not in _kept_dims(instruction):
        return None
    return instruction.dims[batch[operand]]


def _backward_broadcast(instruction: Instruction, batch: BatchDims) -> None:
    (operand,) = instruction.operands
    # Alpa takes the last operand dim that goes to the batch dim or before it.
    before = [source for source in _kept_dims(instruction) if instruction.dims[source] <= batch[instruction]]
    if operand not in batch and before:
        batch[operand] = before[-1]


def _kept_dims(broadcast: Instruction) -> list[int]:
    """The operand dims that are not stretched: in HLO a stretched one is dropped by a reshape in front."""
    (operand,) = broadcast.operands
    return [source for source, dim in enumerate(broadcast.dims) if operand.shape[source] == broadcast.shape[dim]]


def _forward_reshape(instruction: Instruction, batch: BatchDims) -> int | None:
    (operand,) = instruction.operands
    if operand in batch and _same_leading_dims(operand, instruction, batch[operand]):
        return batch[operand]
    return None


def _backward_reshape(instruction: Instruction, batch: BatchDims) -> None:
    (operand,) = instruction.operands
    if operand not in batch and _same_leading_dims(operand, instruction, batch[instruction]):
        batch[operand] = batch[instruction]


def _forward_transpose(instruction: Instruction, batch: BatchDims) -> int | None:
    (operand,) = instruction.operands
    return instruction.dims.index(batch[operand]) if operand in batch else None


def _backward_transpose(instruction: Instruction, batch: BatchDims) -> None:
    (operand,) = instruction.operands
    batch.setdefault(operand, instruction.dims[batch[instruction]])


def _forward_reduce(instruction: Instruction, batch: BatchDims) -> int | None:
    operand = instruction.operands[0]
    return 0 if batch.get(operand) == 0 and 0 not in instruction.dims else None


def _backward_reduce(instruction: Instruction, batch: BatchDims) -> None:
    operand = instruction.operands[0]
    if operand not in batch and batch[instruction] == 0 and 0 not in instruction.dims:
        batch[operand] = 0


def _forward_dot(instruction: Instruction, batch: BatchDims) -> int | None:
    dims = instruction.dot
    assert dims is not None
    lhs, rhs = instruction.operands
    found = batch.get(instruction)
    for operand, batch_dims, free, out in (
        (lhs, dims.lhs_batch, dims.lhs_free, dims.out_lhs),
        (rhs, dims.rhs_batch, dims.rhs_free, dims.out_rhs),
    ):
        if operand in batch:
            if batch[operand] in batch_dims:
                found = batch_dims.index(batch[operand])
            elif batch[operand] == free:
                found = out
    return found


def _backward_dot(instruction: Instruction, batch: BatchDims) -> None:
    dims = instruction.dot
    assert dims is not None
    lhs, rhs = instruction.operands
    dim = batch[instruction]
    for operand, batch_dims, free, out in (
        (lhs, dims.lhs_batch, dims.lhs_free, dims.out_lhs),
        (rhs, dims.rhs_batch, dims.rhs_free, dims.out_rhs),
    ):
        if operand not in batch:
            if dim < len(batch_dims):
                batch[operand] = batch_dims[dim]
            elif dim == out:
                batch[operand] = free


def _forward_conv(instruction: Instruction, batch: BatchDims) -> int | None:
    dims = instruction.conv
    assert dims is not None
    lhs, rhs = instruction.operands
    found = batch.get(instruction)
    if batch.get(lhs) == dims.lhs_batch:
        found = dims.out_batch
    if batch.get(rhs) == dims.rhs_out_feature:
        found = dims.out_feature
    return found


def _backward_conv(instruction: Instruction, batch: BatchDims) -> None:
    dims = instruction.conv
    assert dims is not None
    lhs, rhs = instruction.operands
    if batch[instruction] == dims.out_batch:
        batch.setdefault(lhs, dims.lhs_batch)
    if batch[instruction] == dims.out_feature:
        batch.setdefault(rhs, dims.rhs_out_feature)


def _forward_indexed(instruction: Instruction, batch: BatchDims) -> int | None:
    operand = instruction.operands[0]
    if operand in batch and _same_dim(operand, instruction, batch[operand]):
        return batch[operand]
    return None


def _backward_indexed(instruction: Instruction, batch: BatchDims) -> None:
    operand = instruction.operands[0]
    if _same_dim(operand, instruction, batch[instruction]):
        batch[operand] = batch[instruction]


def _forward_sort(instruction: Instruction, batch: BatchDims) -> int | None:
    found = (batch[operand] for operand in instruction.operands if operand in batch)
    return next((dim for dim in found if dim not in instruction.dims), None)


def _backward_sort(instruction: Instruction, batch: BatchDims) -> None:
    if batch[instruction] not in instruction.dims:
        for operand in instruction.operands:
            batch[operand] = batch[instruction]


def _forward_same(instruction: Instruction, batch: BatchDims) -> int | None:
    return batch.get(instruction.operands[0])


def _backward_same(instruction: Instruction, batch: BatchDims) -> None:
    batch.setdefault(instruction.operands[0], batch[instruction])


_FORWARD: dict[str, Callable[[Instruction, BatchDims], int | None]] = {
    **dict.fromkeys(_DIMWISE, _forward_dimwise),
    "broadcast_in_dim": _forward_broadcast,
    "reshape": _forward_reshape,
    "transpose": _forward_transpose,
    "reduce": _forward_reduce,
    "dot_general": _forward_dot,
    "convolution": _forward_conv,
    "gather": _forward_indexed,
    "scatter": _forward_indexed,
    "sort": _forward_sort,
    "marker": _forward_same,
}

_BACKWARD: dict[str, Callable[[Instruction, BatchDims], None]] = {
    **dict.fromkeys(_DIMWISE, _backward_dimwise),
    "broadcast_in_dim": _backward_broadcast,
    "reshape": _backward_reshape,
    "transpose": _backward_transpose,
    "reduce": _backward_reduce,
    "dot_general": _backward_dot,
    "convolution": _backward_conv,
    "gather": _backward_indexed,
    "scatter": _backward_indexed,
    "sort": _backward_sort,
    "marker": _backward_same,
}
