"""What is known of a plan's program before it is compiled: its work, from the program or from its skeletons.

Takes partitioned programs; gives the work of the whole one. Of a deep model only skeletons are partitioned
(`extraction.skeleton`): a unit of a repeat adds operations, bytes and collectives, or bytes to collectives that combine
those of all units, and each further unit adds the same. Invariant: a program that is partitioned whole has its own
work.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from alpa_cfp.costs import Work, read_local, work_of
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import Collective


@dataclass(frozen=True, slots=True)
class PlannedProgram:
    """The program of a plan.

    Attributes:
        blocks: The number of blocks of all programs that were partitioned for it.
        work: What a device does in it; None if that is not known before it is compiled.
        whole: The whole program; None if only skeletons were partitioned.
    """

    blocks: int
    work: Work | None
    whole: HloModule | None = None

    @classmethod
    def of_whole(cls, module: HloModule, blocks: int) -> "PlannedProgram":
        """The program that `module` is."""
        return cls(blocks, _work(module), module)

    @classmethod
    def of_skeletons(
        cls, least: HloModule, others: Sequence[HloModule], missing: Sequence[float], blocks: int
    ) -> "PlannedProgram":
        """The program of which skeletons were partitioned.

        Args:
            least: The skeleton with the fewest units of each repeat.
            others: For each repeat the skeleton that has one unit more of it.
            missing: For each repeat the number of units that the program has more than `least`; a whole number.
            blocks: The number of their blocks.
        """
        known = [each for each in map(_work, (least, *others)) if each is not None]
        if len(known) <= len(others):
            return cls(blocks, None)
        first, *longer = known
        counts = [round(count) for count in missing]
        flops, memory = first.flops, first.memory_bytes
        for more, count in zip(longer, counts, strict=True):
            flops += count * (more.flops - first.flops)
            memory += count * (more.memory_bytes - first.memory_bytes)
        collectives = extrapolated(first.collectives, [each.collectives for each in longer], counts)
        return cls(blocks, Work(max(flops, 0.0), max(memory, 0.0), collectives))


def extrapolated(
    least: Sequence[Collective], longer: Sequence[Sequence[Collective]], missing: Sequence[int]
) -> tuple[Collective, ...]:
    """Returns the collectives of a program, from those of its skeletons.

    Args:
        least: Those of the skeleton with the fewest units.
        longer: For each repeat those of the skeleton with one unit more of it.
        missing: For each repeat the number of units that the program has more than `least`.
    """
    amounts = [_amounts(each) for each in least]
    added: list[Collective] = []
    for other, count in zip(longer, missing, strict=True):
        # Equal ones may run beside contractions or not.
        of_least, of_other = (Counter((each, each.is_aside) for each in some) for some in (least, other))
        new, old = of_other - of_least, of_least - of_other
        changed: list[int] = []
        for number, each in enumerate(least):
            if old[each, each.is_aside]:
                old[each, each.is_aside] -= 1
                changed.append(number)
        for number in sorted(changed, key=lambda number: -int(amounts[number][0])):
            before = least[number]
            after = _changed(before, [each for each, _ in new.elements()])
            if after is not None:
                new[after, after.is_aside] -= 1
            amounts[number] = amounts[number] + count * ((0 if after is None else _amounts(after)) - _amounts(before))
        added += [each for each, _ in new.elements() for _ in range(count)]
    pairs = zip(least, amounts, strict=True)
    kept = (
        Collective(each.kind, size, each.group_size, *arrays, is_aside=each.is_aside)
        for each, (size, *arrays) in _positive(pairs)
    )
    return (*kept, *added)


def _amounts(collective: Collective) -> np.ndarray:
    """Its bytes, and what it says of its arrays."""
    arrays = (collective.large_arrays, collective.small_arrays, collective.small_bytes)
    return np.array([collective.size_bytes, *arrays], np.int64)


def _positive(pairs: Iterable[tuple[Collective, np.ndarray]]) -> Iterator[tuple[Collective, list[int]]]:
    """Collectives that communicate something, with their amounts."""
    for each, amounts in pairs:
        if amounts[0] > 0:
            yield each, np.maximum(amounts, 0).tolist()


def _changed(before: Collective, candidates: Sequence[Collective]) -> Collective | None:
    """What has become of a collective in a longer program: the next larger one, as one that combines those of all units
    grows; else the next smaller one, with which the bytes of all together are right.
    """
    alike = [each for each in candidates if (each.kind, each.group_size) == (before.kind, before.group_size)]
    # One that is combined with others may run beside contractions in one of the programs only.
    alike = [each for each in alike if each.is_aside == before.is_aside] or alike
    larger = [each for each in alike if each.size_bytes > before.size_bytes]
    if larger:
        return min(larger, key=lambda each: each.size_bytes)
    return max(alike, key=lambda each: each.size_bytes, default=None)


def _work(module: HloModule) -> Work | None:
    program = module.partitioned
    assert program is not None
    return work_of(program, read_local(program)) if program.partitioner == "shardy" else None
