"""Give every op that no ParallelBlock has grown over to one of the blocks, as its glue.

Takes which ops are members of which block; gives a block for every op that is not free. Forward and backward glue goes
to the block that consumes it first (a LayerNorm to the projection behind it, the backward pass of a LayerNorm to the
projection whose gradients it feeds); what no block consumes (optimizer, metrics) to the block that its largest operand
comes from; what is computed again to the block of its original. A few passes over the ops. Invariant: ops that have a
block keep it.
"""

import math

from alpa_cfp.analysis.graph import BARRIER, Graph, Op


def assign_glue(
    graph: Graph, originals_of: list[int], forward_entries: list[int], block_of_op: list[int | None]
) -> None:
    """Fill in `block_of_op`, in place, for every op that is not free; there must be a block in it already.

    Args:
        graph: The graph.
        originals_of: For each op the one that it computes again, itself where there is none.
        forward_entries: The forward contractions, and loops with such in them.
        block_of_op: The block of each member, None for all other ops.
    """
    last = max(block for block in block_of_op if block is not None)
    glue = [op for op in graph.ops if block_of_op[op.index] is None and not graph.constant_derived[op.index]]
    clones = [op for op in glue if originals_of[op.index] != op.index]
    originals = [op for op in glue if originals_of[op.index] == op.index]
    leads_forward = _ancestors(graph, forward_entries)
    _from_consumers(graph, originals_of, leads_forward, block_of_op, originals)
    for op in glue:
        original = originals_of[op.index]
        if block_of_op[op.index] is None:
            block_of_op[op.index] = block_of_op[original] if original != op.index else _producer(graph, block_of_op, op)
    _from_consumers(graph, originals_of, leads_forward, block_of_op, originals)
    for op in originals:
        if block_of_op[op.index] is None:
            block_of_op[op.index] = last
    for op in clones:
        block_of_op[op.index] = block_of_op[originals_of[op.index]]


def _ancestors(graph: Graph, ops: list[int]) -> list[bool]:
    """For each op whether one of `ops` is computed from it, or is it."""
    found = [False] * len(graph.ops)
    for op in ops:
        found[op] = True
    for op in reversed(graph.ops):
        if found[op.index]:
            for operand in op.operands:
                if (producer := graph.values[operand].op) is not None:
                    found[producer] = True
    return found


def _from_consumers(
    graph: Graph, originals_of: list[int], leads_forward: list[bool], block_of_op: list[int | None], ops: list[Op]
) -> None:
    """The block of the first user that has one, for each op, last op first; a clone counts as what it is a clone of.

    What leads to a forward contraction follows the users that do too: a norm's forward pass also computes factors for
    its backward pass, which is consumed elsewhere.
    """
    for op in reversed(ops):
        if block_of_op[op.index] is not None:
            continue
        users = sorted({user for result in op.results for user in _users(graph, result)})
        if leads_forward[op.index]:
            users = [user for user in users if leads_forward[user]]
        blocks = (block_of_op[originals_of[user]] for user in users)
        block_of_op[op.index] = next((block for block in blocks if block is not None), None)


def _users(graph: Graph, value: int) -> list[int]:
    """The ops that use a value, or get it through a barrier: that passes on values which have nothing in common."""
    users: list[int] = []
    for user in graph.values[value].users:
        op = graph.ops[user]
        if op.name == BARRIER:
            for operand, result in zip(op.operands, op.results, strict=True):
                if operand == value:
                    users += _users(graph, result)
        else:
            users.append(user)
    return users


def _producer(graph: Graph, block_of_op: list[int | None], op: Op) -> int | None:
    """The block of the operand with most elements of its own, of the latest of these."""
    candidates = [
        (_elements(graph, operand), producer.index, block)
        for operand in op.operands
        if (producer := graph.producer(operand)) is not None and (block := block_of_op[producer.index]) is not None
    ]
    return max(candidates)[2] if candidates else None


def _elements(graph: Graph, value: int) -> int:
    """How many elements a value has that are not copies: an optimizer's broadcast scale has one."""
    producer = graph.producer(value)
    while producer is not None and producer.name == "stablehlo.broadcast_in_dim":
        (value,) = producer.operands
        producer = graph.producer(value)
    return math.prod(graph.shape(value))
