"""Assigns each op that is no member of a ParallelBlock to one of the blocks, as its glue.

Takes the members of each block; gives a block for every op that is not constant-derived. Forward and backward glue
belongs to the block that consumes it first (a LayerNorm to the projection behind it, the backward pass of a LayerNorm
to the projection whose gradients it feeds). Ops that no block consumes (optimizer, metrics) belong to the block of
their largest operand, rematerialised ops to the block of their original. Where one block broadcasts a value only for
another, the broadcast is done in that other one; a sum of a value that other ops use, too, is done where that value is:
positions that all samples share are broadcast, and their gradient is summed, where the samples are. A few passes over
the ops. Invariant: ops that have a block keep it.
"""

import math
from collections.abc import Iterator, Sequence

from alpa_cfp.analysis.graph import Graph, Op


def assign_glue(
    graph: Graph, original_of: list[int], forward_entries: list[int], block_of_op: list[int | None]
) -> None:
    """Fills in `block_of_op`, in place, for every op that is not constant-derived; one op must have a block already.

    Args:
        graph: The graph.
        original_of: For each op the op that it rematerialises; the op itself where there is none.
        forward_entries: The forward contractions, and the loops that contain some.
        block_of_op: The block of each member, None for all other ops.
    """
    last = max(block for block in block_of_op if block is not None)
    glue = [op for op in graph.ops if block_of_op[op.index] is None and not graph.constant_derived[op.index]]
    rematerialised = [op for op in glue if original_of[op.index] != op.index]
    originals = [op for op in glue if original_of[op.index] == op.index]
    leads_forward = graph.with_ancestors(forward_entries)
    # A sum of a value that others use, too, waits for the block of that value.
    sure = [op for op in originals if leads_forward[op.index] or not _sums_what_others_use(graph, op)]
    _assign_from_consumers(graph, original_of, leads_forward, block_of_op, sure)
    for op in glue:
        original = original_of[op.index]
        if block_of_op[op.index] is None:
            block_of_op[op.index] = block_of_op[original] if original != op.index else _producer(graph, block_of_op, op)
    _assign_from_consumers(graph, original_of, leads_forward, block_of_op, originals)
    for op in originals:
        if block_of_op[op.index] is None:
            block_of_op[op.index] = last
    for op in rematerialised:
        block_of_op[op.index] = block_of_op[original_of[op.index]]


def widened_elsewhere(
    graph: Graph, original_of: Sequence[int], block_of_op: Sequence[int | None]
) -> Iterator[tuple[int, int]]:
    """The members that broadcast a value for one other block alone, and that block; also ops that rematerialise them.

    Args:
        graph: The graph.
        original_of: For each op the op that it rematerialises; the op itself where there is none.
        block_of_op: The block of each member, None for all other ops.
    """
    moved: dict[int, int] = {}
    for op in graph.ops:
        if original_of[op.index] != op.index:
            if original_of[op.index] in moved:
                yield op.index, moved[original_of[op.index]]
            continue
        own = block_of_op[op.index]
        if own is None or op.name != "stablehlo.broadcast_in_dim" or not _widens(graph, op):
            continue
        users = {block_of_op[user] for user in graph.users_through_barriers(op.results[0])}
        if len(users) == 1 and (other := users.pop()) not in (None, own):
            moved[op.index] = other
            yield op.index, other


def _widens(graph: Graph, op: Op) -> bool:
    return math.prod(graph.shape(op.results[0])) > math.prod(graph.shape(op.operands[0]))


def _sums_what_others_use(graph: Graph, op: Op) -> bool:
    """Whether an op reduces a value that other ops use, too."""
    if op.name != "stablehlo.reduce":
        return False
    return any(
        len(graph.users_through_barriers(value)) > 1 and math.prod(graph.shape(value)) > math.prod(graph.shape(result))
        for value, result in zip(op.operands, op.results, strict=False)
    )


def _assign_from_consumers(
    graph: Graph, original_of: list[int], leads_forward: list[bool], block_of_op: list[int | None], ops: list[Op]
) -> None:
    """Assigns each op to the block of its first user that has one, last op first; a rematerialised user counts as its
    original.

    Of an op from which a forward contraction is computed, only users count from which one is computed too: a norm's
    forward pass also computes factors for its backward pass, which is consumed elsewhere.
    """
    for op in reversed(ops):
        if block_of_op[op.index] is not None:
            continue
        users = sorted({user for result in op.results for user in graph.users_through_barriers(result)})
        if leads_forward[op.index]:
            users = [user for user in users if leads_forward[user]]
        blocks = (block_of_op[original_of[user]] for user in users)
        block_of_op[op.index] = next((block for block in blocks if block is not None), None)


def _producer(graph: Graph, block_of_op: list[int | None], op: Op) -> int | None:
    """The block of the operand with most elements, of the latest such operand."""
    candidates = [
        (graph.elements(operand), producer.index, block)
        for operand in op.operands
        if (producer := graph.producer(operand)) is not None and (block := block_of_op[producer.index]) is not None
    ]
    return max(candidates)[2] if candidates else None
