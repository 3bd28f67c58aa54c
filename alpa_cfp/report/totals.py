"""Where the time and the memory of a plan go: takes an account, gives contributions, the largest first.

Invariant: the contributions to a step's time add up to what its blocks, the moves between them and its start take by
themselves, which is `parts_s`; a prediction for the whole program can be more or less than that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from alpa_cfp.plan.plan_report import PlanReport
from alpa_cfp.report.folding import BlockPosition, Folded, chosen, fold_moves


@dataclass(frozen=True, slots=True)
class TimeShare:
    """What takes time.

    Attributes:
        name: In words.
        count: How many equal ones there are.
        time_s: Of all together.
        place: The block that it is; None of a move and of the start.
    """

    name: str
    count: int
    time_s: float
    place: BlockPosition | None


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """What a device holds for blocks.

    Attributes:
        name: The block.
        count: How many equal ones there are.
        state_bytes, saved_bytes: Of all together.
        transient_bytes: Of the one that needs most.
        place: The block.
    """

    name: str
    count: int
    state_bytes: int
    saved_bytes: int
    transient_bytes: int
    place: BlockPosition

    @property
    def lasting_bytes(self) -> int:
        """What adds up over blocks."""
        return self.state_bytes + self.saved_bytes


def times(account: PlanReport, segments: Sequence[Folded]) -> tuple[TimeShare, ...]:
    """What takes the time of a step; blocks of unknown time are left out."""
    shares = [
        TimeShare(segment.full_names[position], segment.count, segment.count * seconds, BlockPosition(number, position))
        for number, segment in enumerate(segments)
        for position, block in enumerate(segment.first)
        if (seconds := chosen(account, account.blocks[block]).time_s)
    ]
    for move in fold_moves(account, segments):
        first, second = (segments[at.segment].full_names[at.position] for at in (move.first, move.second))
        shares.append(TimeShare(f"moving {first} to {second}", move.count, move.time_s, None))
    shares.append(TimeShare("starting the program", 1, account.overhead_s, None))
    return tuple(sorted((each for each in shares if each.time_s > 0), key=lambda each: -each.time_s))


def memories(account: PlanReport, segments: Sequence[Folded]) -> tuple[MemoryShare, ...]:
    """What a device holds for each folded block, by what lasts longer than the block runs."""
    shares = []
    for number, segment in enumerate(segments):
        for position, name in enumerate(segment.full_names):
            own = [account.blocks[copy[position]] for copy in segment.copies]
            state, saved = sum(block.state_bytes for block in own), sum(block.saved_bytes for block in own)
            brief = max(block.transient_bytes for block in own)
            shares.append(MemoryShare(name, segment.count, state, saved, brief, BlockPosition(number, position)))
    return tuple(sorted(shares, key=lambda each: -each.lasting_bytes))


def blocks_s(account: PlanReport) -> float:
    """What the blocks take, where it is known."""
    return sum(chosen(account, block).time_s or 0.0 for block in account.blocks)


def moves_s(account: PlanReport) -> float:
    """What moves between blocks take."""
    return sum(move.time_s for move in account.moves)


def parts_s(account: PlanReport) -> float:
    """What the parts of a step take by themselves."""
    return blocks_s(account) + moves_s(account) + account.overhead_s
