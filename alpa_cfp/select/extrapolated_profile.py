"""The profile of a program that was not run, from those of its skeletons (`extraction.skeleton`).

Takes the profiles of the skeletons; gives one of the whole program, in which each unit that is missing adds what one
more unit added: to the typical time, to the memory, to the number of collectives.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from alpa_cfp.database import Collective, Profile
from alpa_cfp.spmd.module.hlo_module import HloModule

_SIZES = ("argument_bytes", "output_bytes", "aliased_bytes", "temporary_bytes")


@dataclass(frozen=True, slots=True)
class ShorterPrograms:
    """The partitioned skeletons of a plan that are run instead of its whole program.

    Attributes:
        modules: The skeletons, the one with the fewest units first.
        missing: For each other one how many times what it adds is missing in the first.
        blocks: The number of blocks of the longest one.
    """

    modules: tuple[HloModule, ...]
    missing: tuple[float, ...]
    blocks: int


def extrapolated_profile(profiles: Sequence[Profile], missing: Sequence[float]) -> Profile:
    """The profile of the whole program.

    Args:
        profiles: Those of the skeletons, in the order of `ShorterPrograms.modules`; the first that failed is returned.
        missing: See `ShorterPrograms`.
    """
    for profile in profiles:
        if profile.status == "failed":
            return profile

    def of_whole(values: Sequence[float]) -> float:
        least, *longer = values
        return least + sum(steps * (value - least) for steps, value in zip(missing, longer, strict=True))

    times_s = [each.lower_half_mean_s for each in profiles]
    # Noise must not make a long program faster than a short one.
    seconds = max(of_whole(times_s), *times_s)
    count = min(len(each.samples_s) for each in profiles)
    sizes = {name: max(round(of_whole([getattr(each, name) or 0 for each in profiles])), 0) for name in _SIZES}
    return replace(
        profiles[0],
        samples_s=(seconds,) * count,
        compile_s=sum(each.compile_s or 0.0 for each in profiles),
        flops=None,
        bytes_accessed=None,
        collectives=_collectives(profiles, of_whole),
        **sizes,
    )


def _collectives(profiles: Sequence[Profile], of_whole: Callable[[Sequence[float]], float]) -> tuple[Collective, ...]:
    """The collectives by kind and group size, each of the mean size of those alike."""
    keys = sorted({(each.kind, each.group_size) for profile in profiles for each in profile.collectives})
    found: list[Collective] = []
    for key in keys:
        alike = [[c for c in profile.collectives if (c.kind, c.group_size) == key] for profile in profiles]
        count = round(of_whole([sum(each.count for each in some) for some in alike]))
        size_bytes = of_whole([sum(each.count * each.size_bytes for each in some) for some in alike])
        if count > 0:
            found.append(Collective(key[0], max(round(size_bytes / count), 0), key[1], count))
    return tuple(found)
