"""Assigns each op that is no member of a ParallelBlock to one of the blocks, as its glue.

Takes the members of each block; gives a block for every op that is not constant-derived. Forward and backward glue
belongs to the block that consumes it first (a LayerNorm to the projection behind it, the backward pass of a LayerNorm
to the projection whose gradients it feeds). Ops that no block consumes (optimizer, metrics) belong to the block of
their largest operand, rematerialised ops to the block of their original. A few passes over the ops. Invariant: ops
that have a block keep it.
"""

import math

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
    _assign_from_consumers(graph, original_of, leads_forward, block_of_op, originals)
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
        (_elements(graph, operand), producer.index, block)
        for operand in op.operands
        if (producer := graph.producer(operand)) is not None and (block := block_of_op[producer.index]) is not None
    ]
    return max(candidates)[2] if candidates else None


def _elements(graph: Graph, value: int) -> int:
    """The number of elements of a value before broadcasts: an optimizer's broadcast scale has one."""
    producer = graph.producer(value)
    while producer is not None and producer.name == "stablehlo.broadcast_in_dim":
        (value,) = producer.operands
        producer = graph.producer(value)
    return math.prod(graph.shape(value))
