"""Equal layers said once: takes an account, gives its blocks as a few folded segments, each with its copies.

Invariant: the copies of all segments, in order, are the blocks of the program in order, each once; copies of a segment
have blocks of the same kinds with the same choices.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from alpa_cfp.plan.plan_report import Alternative, BlockReport, PlanReport

Signature = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Folded:
    """A segment and its copies.

    Attributes:
        copies: For each copy the indices of its blocks.
        title: What it is called: "encoder/layer/0-23".
        names: What its blocks are called within it: ("attention/qvk", "mlp/up").
        full_names: What they are called without it: ("encoder/layer/0-23/attention/qvk", ...).
    """

    copies: tuple[tuple[int, ...], ...]
    title: str
    names: tuple[str, ...]
    full_names: tuple[str, ...]

    @property
    def first(self) -> tuple[int, ...]:
        """The blocks of the first copy."""
        return self.copies[0]

    @property
    def count(self) -> int:
        """How many copies there are."""
        return len(self.copies)


@dataclass(frozen=True, slots=True)
class BlockPosition:
    """A block of a folded segment: all its copies."""

    segment: int
    position: int


@dataclass(frozen=True, slots=True)
class FoldedMove:
    """Moves from the copies of a block to those of another.

    Attributes:
        first, second: From where to where.
        count: How many pairs of blocks.
        time_s, size_bytes, collectives: Of all together.
    """

    first: BlockPosition
    second: BlockPosition
    count: int
    time_s: float
    size_bytes: int
    collectives: int


def chosen(account: PlanReport, block: BlockReport) -> Alternative:
    """What was chosen for a block."""
    return account.kinds[block.kind].alternatives[block.chosen]


def fold(account: PlanReport) -> tuple[Folded, ...]:
    """The folded segments of a program."""
    layers = _layers(account.blocks)
    signatures = [tuple((account.blocks[i].kind, account.blocks[i].chosen) for i in layer) for layer in layers]
    found, start = [], 0
    while start < len(layers):
        period, repeats = _longest(signatures, start)
        copies = tuple(
            tuple(block for layer in layers[start + i * period : start + (i + 1) * period] for block in layer)
            for i in range(repeats)
        )
        found.append(_named(account.blocks, copies))
        start += period * repeats
    return tuple(found)


def places(segments: Sequence[Folded]) -> dict[int, BlockPosition]:
    """For each block where it is in the folded segments."""
    return {
        block: BlockPosition(number, position)
        for number, segment in enumerate(segments)
        for copy in segment.copies
        for position, block in enumerate(copy)
    }


def fold_moves(account: PlanReport, segments: Sequence[Folded]) -> tuple[FoldedMove, ...]:
    """The moves between folded blocks, the one that takes longest first."""
    where, found = places(segments), dict[tuple[BlockPosition, BlockPosition], FoldedMove]()
    for move in account.moves:
        key = (where[move.first], where[move.second])
        known = found.get(key, FoldedMove(*key, 0, 0.0, 0, 0))
        found[key] = FoldedMove(
            *key,
            known.count + 1,
            known.time_s + move.time_s,
            known.size_bytes + move.size_bytes,
            known.collectives + move.collectives,
        )
    # In order of place where times are equal.
    return tuple(sorted(found.values(), key=lambda move: (-move.time_s, move.first.segment, move.first.position)))


def span(names: Sequence[str]) -> str:
    """Names of equal things as one: "layer/0-23/mlp/up" for "layer/0/mlp/up" to "layer/23/mlp/up"."""
    paths = [name.split("/") for name in names]
    if len({len(path) for path in paths}) > 1:
        return f"{names[0]} to {names[-1]}"
    return "/".join(_span_of_parts([path[i] for path in paths]) for i in range(len(paths[0])))


def _layers(blocks: Sequence[BlockReport]) -> list[range]:
    """The segments of the program, each by the indices of its blocks."""
    own = [(block.segment, block.repetition) for block in blocks]
    starts = [i for i in range(len(own)) if i == 0 or own[i] != own[i - 1]]
    return [range(start, end) for start, end in itertools.pairwise([*starts, len(own)])]


def _longest(signatures: Sequence[Signature], start: int) -> tuple[int, int]:
    """The period and the number of repeats of what repeats longest from `start` on; (1, 1) where nothing does."""
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


def _named(blocks: Sequence[BlockReport], copies: tuple[tuple[int, ...], ...]) -> Folded:
    full = tuple(span([blocks[copy[i]].name for copy in copies]) for i in range(len(copies[0])))
    if len(full) == 1:
        return Folded(copies, full[0], full, full)
    prefix = _common(full)
    names = tuple(name.removeprefix(f"{prefix}/") if prefix else name for name in full)
    return Folded(copies, prefix or f"{full[0]} to {full[-1]}", names, full)


def _common(names: Sequence[str]) -> str:
    """The path that names begin with, shorter than each of them."""
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
    said = ",".join(map(str, numbers)) if few else f"{numbers[0]},{numbers[1]}..{numbers[-1]}"
    return f"{stem}{{{said}}}"
