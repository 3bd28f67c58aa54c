"""Contributions to the time and the memory of a plan, the largest first.

Invariant: the contributions to a step's time add up to `parts_s`: the times of its blocks, of the moves between them
and of its start. A prediction for the whole program can differ from that.
"""

from dataclasses import dataclass

from alpa_cfp.plan.plan_report import PlanReport
from alpa_cfp.report.folding import FoldedBlock, FoldedPlan


@dataclass(frozen=True, slots=True)
class TimeShare:
    """A contribution to the time of a step.

    Attributes:
        name: In words.
        count: Number of equal ones.
        time_s: Sum over them.
        block: The block; None for a move and for the start.
    """

    name: str
    count: int
    time_s: float
    block: FoldedBlock | None = None


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """The memory of a device for equal blocks.

    Attributes:
        block: The blocks.
        state_bytes, saved_bytes: Sums over them.
        transient_bytes: The maximum over them.
    """

    block: FoldedBlock
    state_bytes: int
    saved_bytes: int
    transient_bytes: int

    @property
    def lasting_bytes(self) -> int:
        """The memory that adds up over blocks."""
        return self.state_bytes + self.saved_bytes


def times(folded: FoldedPlan) -> tuple[TimeShare, ...]:
    """The contributions to the time of a step; blocks of unknown time are left out."""
    shares = [
        TimeShare(block.full_name, block.count, block.count * seconds, block)
        for block in folded.blocks
        if (seconds := folded.chosen(block.first).time_s)
    ]
    for move in folded.moves():
        name = f"moving {move.first.full_name} to {move.second.full_name}"
        shares.append(TimeShare(name, move.count, move.time_s))
    shares.append(TimeShare("starting the program", 1, folded.report.overhead_s))
    return tuple(sorted((each for each in shares if each.time_s > 0), key=lambda each: -each.time_s))


def memories(folded: FoldedPlan) -> tuple[MemoryShare, ...]:
    """The memory of a device for each folded block, ordered by the part that outlasts the block."""
    shares = []
    for block in folded.blocks:
        own = [folded.report.blocks[index] for index in block.indices]
        state, saved = sum(each.state_bytes for each in own), sum(each.saved_bytes for each in own)
        shares.append(MemoryShare(block, state, saved, max(each.transient_bytes for each in own)))
    return tuple(sorted(shares, key=lambda each: -each.lasting_bytes))


def blocks_s(report: PlanReport) -> float:
    """The time of all blocks whose time is known."""
    return sum(report.chosen(block).time_s or 0.0 for block in report.blocks)


def moves_s(report: PlanReport) -> float:
    """The time of moves between blocks."""
    return sum(move.time_s for move in report.moves)


def parts_s(report: PlanReport) -> float:
    """The time of a step as the sum of its parts."""
    return blocks_s(report) + moves_s(report) + report.overhead_s
