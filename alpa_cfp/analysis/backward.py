"""The start of a program's backward pass, and the ranges of it that rematerialise values (`jax.checkpoint`).

Takes `Blocks`; gives ranges of ops. JAX puts a barrier before rematerialised ops, so that they wait for the backward
pass. Such a range ends at the first gradient behind its barrier. Invariant: the ranges are in the backward pass, in
program order, and have no op in common.
"""

from alpa_cfp.analysis.blocks import Blocks
from alpa_cfp.analysis.graph import BARRIER


def backward_start(blocks: Blocks) -> int:
    """The index of the first op of the backward pass: the first gradient, or the barrier of what that rematerialises.

    The number of ops where there is no backward pass.
    """
    start = min(_entries(blocks, "gradient"), default=len(blocks.graph.ops))
    first_rematerialised = min(_entries(blocks, "rematerialised"), default=start)
    if first_rematerialised >= start:
        return start
    return max((op.index for op in blocks.graph.ops[:first_rematerialised] if op.name == BARRIER), default=start)


def rematerialised_ranges(blocks: Blocks) -> tuple[range, ...]:
    """The ranges that rematerialise values, each from its barrier to the first gradient that needs it."""
    found: list[range] = []
    start, gradients = backward_start(blocks), sorted(_entries(blocks, "gradient"), reverse=True)
    for op in blocks.graph.ops[start:]:
        while gradients and gradients[-1] < op.index:
            gradients.pop()
        if op.name == BARRIER and gradients and (not found or op.index >= found[-1].stop):
            found.append(range(op.index, gradients[-1]))
    return tuple(found)


def _entries(blocks: Blocks, role: str) -> list[int]:
    return [entry.op for block in blocks.blocks for entry in block.entries if entry.role == role]
