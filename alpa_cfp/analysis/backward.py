"""Where a program's backward pass begins, and which parts of it compute values again (`jax.checkpoint`).

Takes `Blocks`; gives ranges of ops. JAX puts a barrier before what it computes again, so that it waits for the backward
pass; the first gradient behind that barrier ends it. Invariant: the ranges lie behind the turn, in program order, and
have no op in common.
"""

from alpa_cfp.analysis.blocks import Blocks
from alpa_cfp.analysis.graph import BARRIER


def backward_start(blocks: Blocks) -> int:
    """Where the backward pass begins: at the first gradient, or at the barrier before what that needs computed again.

    The number of ops where there is no backward pass.
    """
    turn = min(_entries(blocks, "gradient"), default=len(blocks.graph.ops))
    again = min(_entries(blocks, "rematerialised"), default=turn)
    if again >= turn:
        return turn
    return max((op.index for op in blocks.graph.ops[:again] if op.name == BARRIER), default=turn)


def rematerialised_ranges(blocks: Blocks) -> tuple[range, ...]:
    """The parts that compute again, each from its barrier to the first gradient that needs it."""
    found: list[range] = []
    turn, gradients = backward_start(blocks), sorted(_entries(blocks, "gradient"), reverse=True)
    for op in blocks.graph.ops[turn:]:
        while gradients and gradients[-1] < op.index:
            gradients.pop()
        if op.name == BARRIER and gradients and (not found or op.index >= found[-1].stop):
            found.append(range(op.index, gradients[-1]))
    return tuple(found)


def _entries(blocks: Blocks, role: str) -> list[int]:
    return [entry.op for block in blocks.blocks for entry in block.entries if entry.role == role]
