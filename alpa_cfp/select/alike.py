"""Which candidates compute alike: one of them is measured for all.

Takes the candidates of a program's blocks; gives their numbers, and for each the one that is measured for it.
Strategies that differ only in what they communicate compute alike: data parallelism, ZeRO-2 and ZeRO-3 do. Invariant:
candidates that compute alike are of one kind of block.
"""

import math
from collections.abc import Hashable, Sequence

import numpy as np

from alpa_cfp.candidates.block_candidates import BlockCandidates, Candidate


def candidate_numbers(block_candidates: Sequence[BlockCandidates]) -> list[list[int]]:
    """For each block the indices of its candidates in `distinct(block_candidates)`."""
    of_kind: dict[int, list[int]] = {}
    start = 0
    for block in block_candidates:
        if block.kind == block.block:
            of_kind[block.kind] = list(range(start, start + len(block.candidates)))
            start += len(block.candidates)
    return [of_kind[block.kind] for block in block_candidates]


def first_alike(kinds: Sequence[int], candidates: Sequence[Candidate]) -> list[int]:
    """For each candidate the number of the first one that computes alike, which is measured for it."""
    first: dict[Hashable, int] = {}
    return [
        number
        if candidate.predicted or candidate.unread or candidate.names_axes
        else first.setdefault((kind, split_of(candidate)), number)
        for number, (kind, candidate) in enumerate(zip(kinds, candidates, strict=True))
    ]


def first_of_order(kinds: Sequence[int], candidates: Sequence[Candidate]) -> tuple[list[int], np.ndarray]:
    """Of candidates that differ by the order of equal mesh axes only the number of the first one, ascending, and for
    each candidate the position of its first one among these.
    """
    firsts, position = list[int](), dict[Hashable, int]()
    places = np.zeros(len(candidates), np.int64)
    for number, (kind, candidate) in enumerate(zip(kinds, candidates, strict=True)):
        key = kind, candidate.order
        places[number] = position.setdefault(key, len(firsts))
        if places[number] == len(firsts):
            firsts.append(number)
    return firsts, places


def split_of(candidate: Candidate) -> tuple[tuple[int, int], ...]:
    """For each factor that a candidate splits the number of parts: equal for candidates that compute alike."""
    strategy = candidate.strategy
    factors = sorted({factor for factor in strategy.factors if factor is not None})
    shape = (*candidate.inputs, *candidate.outputs)[0].mesh.shape
    return tuple((each, math.prod(shape[axis] for axis in strategy.axes_of(each))) for each in factors)
