"""Which candidates compute alike, so that one of them is measured for all, what is measured for it, and which first.

Takes the candidates of a program's blocks; gives their numbers, for each the one that is measured for it, the program
of that one, and those that are measured before anything is known. Strategies that differ only in what they communicate
compute alike: data parallelism, ZeRO-2 and ZeRO-3 do. Invariant: candidates that compute alike are of one kind of
block.
"""

import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from alpa_cfp.analysis.blocks import ParallelBlock
from alpa_cfp.analysis.contractions import SAMPLES
from alpa_cfp.candidates.block_candidates import BlockCandidates
from alpa_cfp.candidates.candidate import Candidate
from alpa_cfp.costs import Rates, Work, estimated_s
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import Collective
from alpa_cfp.spmd.partition.inlined_results import without_broadcasts
from alpa_cfp.spmd.partition.stand_ins import without_communication

# The program of data parallelism is not among the first if it is estimated to take so many times as long as another.
_MUCH_SLOWER = 1.5


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


def split_of(candidate: Candidate) -> Hashable:
    """For each factor that a candidate splits the number of parts, and along which factor it splits sums: equal for
    candidates that compute alike.
    """
    strategy = candidate.strategy
    factors = sorted({factor for factor in strategy.factors if factor is not None})
    shape = (*candidate.inputs, *candidate.outputs)[0].mesh.shape
    parts = tuple((each, math.prod(shape[axis] for axis in strategy.axes_of(each))) for each in factors)
    return parts, strategy.sums_along


def measured_program(candidate: Candidate) -> HloModule:
    """The program that is measured for a candidate."""
    return computing_alone(candidate.module)


def computing_alone(module: HloModule) -> HloModule:
    """A partitioned program without what it communicates, if that is known, and what others compute themselves."""
    program = module.partitioned
    assert program is not None
    if program.collectives:
        module = replace(module)
        module.partitioned = without_communication(program)
    return without_broadcasts(module)


def measured_work(candidate: Candidate, compiled: tuple[Collective, ...] | None = None) -> Work:
    """The work of the program that is measured for a candidate.

    Args:
        candidate: The candidate.
        compiled: The collectives of its compiled program, if XLA partitioned it and they were read.
    """
    if candidate.predicted or candidate.unread:
        return candidate.work if compiled is None else replace(candidate.work, collectives=compiled)
    return replace(candidate.work, collectives=())


def first_numbers(numbers: Sequence[Sequence[int]], targets: Sequence[int], estimates: np.ndarray) -> list[int]:
    """The candidates that are measured first: of each kind of block the one that computes fastest, as estimated.

    What these take tells how well others of the kind are estimated; which of those are measured, draws decide
    (`PlanSearch`).

    Args:
        numbers: For each block the numbers of its candidates; one list for each kind.
        targets: For each candidate the number of the one that is measured for it.
        estimates: For each candidate the seconds that it computes.
    """
    kinds = dict.fromkeys(map(tuple, numbers))
    return sorted(min({targets[i] for i in own}, key=lambda i: (estimates[i], i)) for own in kinds)


def first_measured(block: ParallelBlock, candidates: Sequence[Candidate], rates: Rates) -> list[HloModule]:
    """The programs that are measured first of the candidates of one kind of block: the one that is the fastest, as
    estimated, and that of data parallelism, unless what it communicates makes it much slower.
    """
    targets = first_alike([0] * len(candidates), candidates)
    computing_s = [estimated_s(measured_work(each), rates) for each in candidates]
    first = min(set(targets), key=lambda number: (computing_s[number], number))
    limit_s = _MUCH_SLOWER * min(estimated_s(each.work, rates) for each in candidates)
    by_samples = (
        target
        for target, each in zip(targets, candidates, strict=True)
        if _is_data_parallel(block, each) and estimated_s(each.work, rates) <= limit_s
    )
    return [measured_program(candidates[number]) for number in dict.fromkeys((first, *itertools.islice(by_samples, 1)))]


def _is_data_parallel(block: ParallelBlock, candidate: Candidate) -> bool:
    """Whether a candidate splits one factor of samples along all mesh axes."""
    shape = (*candidate.inputs, *candidate.outputs)[0].mesh.shape
    used = {factor for factor, size in zip(candidate.strategy.factors, shape, strict=True) if size > 1}
    return len(used) == 1 and all(each is not None and block.factors[each].side in SAMPLES for each in used)
