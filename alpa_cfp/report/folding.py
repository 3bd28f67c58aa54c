"""Folds the equal layers of a plan: many blocks become a few segments, each with its copies.

Invariant: the copies of all segments, in order, are the blocks of the program in order, each once; copies of a segment
have blocks of the same kinds with the same strategies.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from alpa_cfp.plan.plan import Plan
from alpa_cfp.plan.plan_report import Alternative, BlockKind, BlockReport, PlanReport
from alpa_cfp.report import words

Signature = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class FoldedBlock:
    """Equal blocks, one of each copy of a segment.

    Attributes:
        segment: Index of the segment.
        position: Index within the segment.
        name: Common name within the segment: "attention/qvk".
        full_name: Common name: "encoder/layer/0-23/attention/qvk".
        indices: Indices of the blocks, in program order.
    """

    segment: int
    position: int
    name: str
    full_name: str
    indices: tuple[int, ...]

    @property
    def first(self) -> int:
        """The index of the first block."""
        return self.indices[0]

    @property
    def count(self) -> int:
        """The number of blocks."""
        return len(self.indices)


@dataclass(frozen=True, slots=True)
class FoldedSegment:
    """A segment and its copies.

    Attributes:
        title: Common name of its blocks: "encoder/layer/0-23".
        blocks: Its blocks, in program order.
    """

    title: str
    blocks: tuple[FoldedBlock, ...]

    @property
    def count(self) -> int:
        """The number of copies."""
        return self.blocks[0].count

    @property
    def copies(self) -> tuple[tuple[int, ...], ...]:
        """For each copy the indices of its blocks."""
        return tuple(zip(*(block.indices for block in self.blocks), strict=True))


@dataclass(frozen=True, slots=True)
class FoldedMove:
    """Moves between equal blocks.

    Attributes:
        first, second: The blocks.
        count: Number of moves.
        time_s, size_bytes, collectives: Sums over them.
    """

    first: FoldedBlock
    second: FoldedBlock
    count: int
    time_s: float
    size_bytes: int
    collectives: int


@dataclass(frozen=True, slots=True)
class FoldedPlan:
    """A plan with its report and its folded segments.

    Attributes:
        plan: The plan.
        report: Its report.
        segments: Its blocks, folded.
    """

    plan: Plan
    report: PlanReport
    segments: tuple[FoldedSegment, ...]

    @property
    def blocks(self) -> list[FoldedBlock]:
        """The blocks of all segments."""
        return [block for segment in self.segments for block in segment.blocks]

    def kind(self, block: FoldedBlock) -> BlockKind:
        """The kind of a block."""
        return self.report.kinds[self.report.blocks[block.first].kind]

    def chosen(self, index: int) -> Alternative:
        """The chosen alternative of a block of the program."""
        return self.report.chosen(self.report.blocks[index])

    def strategy(self, alternative: Alternative) -> str:
        """A strategy in words."""
        return words.strategy(alternative, self.plan.mesh_shape, self.report.axis_names)

    def block_of(self) -> dict[int, FoldedBlock]:
        """The folded block of each block of the program."""
        return {index: block for block in self.blocks for index in block.indices}

    def moves(self) -> tuple[FoldedMove, ...]:
        """The moves between folded blocks, the one that takes longest first."""
        block_of, found = self.block_of(), dict[tuple[FoldedBlock, FoldedBlock], FoldedMove]()
        for move in self.report.moves:
            key = (block_of[move.first], block_of[move.second])
            known = found.get(key, FoldedMove(*key, 0, 0.0, 0, 0))
            found[key] = FoldedMove(
                *key,
                known.count + 1,
                known.time_s + move.time_s,
                known.size_bytes + move.size_bytes,
                known.collectives + move.collectives,
            )
        # In program order if times are equal.
        return tuple(sorted(found.values(), key=lambda move: (-move.time_s, move.first.segment, move.first.position)))


def fold(report: PlanReport) -> tuple[FoldedSegment, ...]:
    """Folds the segments of a program."""
    layers = _layers(report.blocks)
    signatures = [tuple((report.blocks[i].kind, report.blocks[i].chosen) for i in layer) for layer in layers]
    found, start = list[FoldedSegment](), 0
    while start < len(layers):
        period, repeats = _longest_repeat(signatures, start)
        copies = [
            [block for layer in layers[start + i * period : start + (i + 1) * period] for block in layer]
            for i in range(repeats)
        ]
        found.append(_named(report.blocks, copies, len(found)))
        start += period * repeats
    return tuple(found)


def span(names: Sequence[str]) -> str:
    """One name for equal blocks: "layer/0-23/mlp/up" for "layer/0/mlp/up" to "layer/23/mlp/up"."""
    paths = [name.split("/") for name in names]
    if len({len(path) for path in paths}) > 1:
        return f"{names[0]} to {names[-1]}"
    return "/".join(_span_of_parts([path[i] for path in paths]) for i in range(len(paths[0])))


def _layers(blocks: Sequence[BlockReport]) -> list[range]:
    """The segments of the program, each by the indices of its blocks."""
    own = [(block.segment, block.repetition) for block in blocks]
    starts = [i for i in range(len(own)) if i == 0 or own[i] != own[i - 1]]
    return [range(start, end) for start, end in itertools.pairwise([*starts, len(own)])]


def _longest_repeat(signatures: Sequence[Signature], start: int) -> tuple[int, int]:
    """The period and the count of the longest repetition from `start` on; (1, 1) if there is none."""
    best = (1, 1)
    for period in range(1, (len(signatures) - start) // 2 + 1):
        if signatures[start] != signatures[start + period]:
            continue
        end = start + period
        while end < len(signatures) and signatures[end] == signatures[end - period]:
            end += 1
        repeats = (end - start) // period
        if repeats > 1 and period * repeats > best[0] * best[1]:
            best = (period, repeats)
    return best


def _named(blocks: Sequence[BlockReport], copies: Sequence[Sequence[int]], number: int) -> FoldedSegment:
    """The segment with these copies."""
    own = [tuple(indices) for indices in zip(*copies, strict=True)]
    full = [span([blocks[index].name for index in indices]) for indices in own]
    prefix = _common(full) if len(full) > 1 else ""
    names = [name.removeprefix(f"{prefix}/") if prefix else name for name in full]
    title = prefix or (full[0] if len(full) == 1 else f"{full[0]} to {full[-1]}")
    parts = enumerate(zip(names, full, own, strict=True))
    return FoldedSegment(title, tuple(FoldedBlock(number, position, *part) for position, part in parts))


def _common(names: Sequence[str]) -> str:
    """The longest path that all names begin with, shorter than each of them."""
    paths, common = [name.split("/") for name in names], []
    for parts in zip(*(path[:-1] for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return "/".join(common)


def _span_of_parts(parts: Sequence[str]) -> str:
    if len(set(parts)) == 1:
        return parts[0]
    numbered = [match for part in parts if (match := re.fullmatch(r"(.*?)(\d+)", part))]
    if len(numbered) < len(parts) or len({match[1] for match in numbered}) > 1:
        return f"{parts[0]} to {parts[-1]}"
    stem, numbers = numbered[0][1], [int(match[2]) for match in numbered]
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{stem}{numbers[0]}-{numbers[-1]}"
    few = len(numbers) <= 4
    listed = ",".join(map(str, numbers)) if few else f"{numbers[0]},{numbers[1]}..{numbers[-1]}"
    return f"{stem}{{{listed}}}"
