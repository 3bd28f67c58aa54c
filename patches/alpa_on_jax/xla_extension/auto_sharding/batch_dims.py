"""Which dim of each value is the batch dim: from the first contraction of the program forwards, then backwards.

Takes a graph, gives a dict from instruction to dim; values without an entry have no batch dim that was found. The rules
are those of `BuildInstructionBatchDimMap` in tensorflow-alpa's auto_sharding_util.cc: dim 0 of the first dot or
convolution (of the program, and of each stage that a pipeline marker starts) is the batch dim.

Which one is the first is not the same: Alpa had the order of a scheduler, which goes for the deepest result first. In
the order of the program a backward stage may begin with the gradient of a weight, of which no dim is the batch. So a
contraction over what is known to be the batch dim is passed over.
"""

from collections.abc import Callable, Sequence

from alpa_on_jax.xla_extension.auto_sharding.graph import Graph, Instruction
from alpa_on_jax.xla_extension.auto_sharding.opcodes import ELEMENTWISE

BatchDims = dict[Instruction, int]

# Ops whose operands and result have the same dims, each for itself.
_DIMWISE = ELEMENTWISE | {
    "reverse", "pad", "slice", "concatenate", "dynamic_slice", "dynamic_update_slice", "reduce_window",
    "select_and_scatter",
}  # fmt: skip
_CONTRACTIONS = ("dot_general", "convolution")
# Behind these, the batch dim that was found in an operand before is replaced by that of the result.
_REPLACING = ("gather", "scatter", "sort")

# For an operand, the dim of the result that each of its dims becomes.
Dims = tuple[Instruction, dict[int, int]]


def find_batch_dims(graph: Graph) -> BatchDims:
    """The batch dims of `graph`."""
    batch: BatchDims = {}
    for contractions in _contractions_of_stages(graph):
        _propagate_forward(graph, batch)
        source = next((each for each in contractions if not _contracts_batch(each, batch)), None)
        if source is not None:
            batch.setdefault(source, 0)
        _propagate_forward(graph, batch)
        _propagate_backward(graph, batch)
    return batch


def _propagate_forward(graph: Graph, batch: BatchDims) -> None:
    for instruction in graph.instructions:
        found = [
            dims[batch[operand]]
            for operand, dims in _dims_through(instruction)
            if operand in batch and batch[operand] in dims
        ]
        if found:
            # As in Alpa: the second side of a contraction decides, and the first operand of everything else.
            batch[instruction] = found[-1 if instruction.opcode in _CONTRACTIONS else 0]


def _propagate_backward(graph: Graph, batch: BatchDims) -> None:
    for instruction in reversed(graph.instructions):
        if instruction not in batch:
            continue
        for operand, dims in _dims_through(instruction):
            sources = [source for source, dim in dims.items() if dim == batch[instruction]]
            if instruction.opcode == "broadcast_in_dim":
                # Alpa takes the last operand dim that goes to the batch dim or before it.
                sources = [source for source, dim in dims.items() if dim <= batch[instruction]][-1:]
            if sources and (operand not in batch or instruction.opcode in _REPLACING):
                batch[operand] = sources[0]


def _contractions_of_stages(graph: Graph) -> list[list[Instruction]]:
    """The contractions before the first start marker, and those behind each; nothing where there are none."""
    stages: list[list[Instruction]] = [[]]
    for instruction in graph.instructions:
        if instruction.opcode in _CONTRACTIONS:
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


def _dims_through(instruction: Instruction) -> Sequence[Dims]:
    """Which dims of its operands become which of its result; empty for an op that has no rule."""
    rule = _RULES.get(instruction.opcode)
    return () if rule is None else rule(instruction)


def _same_dims(instruction: Instruction, operands: Sequence[Instruction]) -> Sequence[Dims]:
    """Dims that keep their place and size."""
    return [
        (operand, {dim: dim for dim, size in enumerate(operand.shape) if size == instruction.shape[dim]})
        for operand in dict.fromkeys(operands)
        if operand.rank == instruction.rank
    ]


def _of_broadcast(instruction: Instruction) -> Sequence[Dims]:
    # Without the operand dims that are stretched: in HLO a stretched one is dropped by a reshape in front.
    (operand,) = instruction.operands
    kept = [s for s, dim in enumerate(instruction.dims) if operand.shape[s] == instruction.shape[dim]]
    return [(operand, {source: instruction.dims[source] for source in kept})]


def _of_reshape(instruction: Instruction) -> Sequence[Dims]:
    """The dims before which all are equal; the last of them may have been split or merged."""
    (operand,) = instruction.operands
    before, after = operand.shape, instruction.shape
    return [(operand, {dim: dim for dim in range(min(len(before), len(after))) if before[:dim] == after[:dim]})]


def _of_dot(instruction: Instruction) -> Sequence[Dims]:
    dims = instruction.dot
    assert dims is not None
    lhs, rhs = instruction.operands
    return [
        (lhs, {dim: out for out, dim in enumerate(dims.lhs_batch)} | {dims.lhs_free: dims.out_lhs}),
        (rhs, {dim: out for out, dim in enumerate(dims.rhs_batch)} | {dims.rhs_free: dims.out_rhs}),
    ]


def _of_conv(instruction: Instruction) -> Sequence[Dims]:
    dims = instruction.conv
    assert dims is not None
    lhs, rhs = instruction.operands
    return [(lhs, {dims.lhs_batch: dims.out_batch}), (rhs, {dims.rhs_out_feature: dims.out_feature})]


_RULES: dict[str, Callable[[Instruction], Sequence[Dims]]] = {
    **dict.fromkeys(_DIMWISE, lambda each: _same_dims(each, each.operands)),
    "broadcast_in_dim": _of_broadcast,
    "reshape": _of_reshape,
    "transpose": lambda each: [(each.operands[0], {source: dim for dim, source in enumerate(each.dims)})],
    "reduce": lambda each: [(each.operands[0], {} if 0 in each.dims else {0: 0})],
    "dot_general": _of_dot,
    "convolution": _of_conv,
    "gather": lambda each: _same_dims(each, each.operands[:1]),
    "scatter": lambda each: _same_dims(each, each.operands[:1]),
    "sort": lambda each: [
        (operand, {dim: dim for dim in range(each.rank) if dim not in each.dims}) for operand in each.operands
    ],
    "marker": lambda each: [(each.operands[0], {dim: dim for dim in range(each.rank)})],
}
