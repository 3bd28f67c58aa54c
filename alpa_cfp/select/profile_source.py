"""The source of profiles: `CFPOption(costs=...)`.

Takes programs; gives their profiles, measured on a mesh's devices or recorded in a database. Invariants:
`TrackedSource` records the key of each profile that was requested, and gives the same samples of a candidate whether
its program ran again since, as a whole plan, or not.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from alpa_cfp.database import Profile, ProfileDatabase, ProfileKey, StepTimeline
from alpa_cfp.profiling import DeviceDescription, key_of, replay
from alpa_cfp.spmd.module.hlo_module import HloModule

# Of all programs, or of each.
Samples = int | Sequence[int] | None


class ProfileSource(Protocol):
    """A function that gives profiles."""

    def __call__(self, modules: Sequence[HloModule], samples: Samples = None, /) -> Sequence[Profile | None]:
        """The profile of each module, None if there is none.

        Args:
            modules: The programs.
            samples: How often all, or each of them, have run in the end if they are measured, on one mesh and
                interleaved, so that small differences show; None: as often as a candidate.
        """
        ...


class TrackedSource:
    """A source of profiles that records what was requested.

    Args:
        devices: The devices of the profiles.
        profiles: The source.
        samples: How often a candidate runs.
        timelines: Gives the timelines of programs that were modelled, by their keys.

    Attributes:
        devices: As given.
        keys: The keys of all profiles that were requested.
    """

    def __init__(
        self,
        devices: DeviceDescription,
        profiles: ProfileSource,
        samples: int,
        timelines: Callable[[ProfileKey], StepTimeline | None] = lambda _: None,
    ) -> None:
        self.devices, self._profiles, self._samples, self._timelines = devices, profiles, samples, timelines
        self.keys: list[ProfileKey] = []

    def __call__(self, modules: Sequence[HloModule], samples: Samples = None, /) -> Sequence[Profile | None]:
        self.keys += [key_of(module, self.devices)[0] for module in modules]
        found = self._profiles(modules, samples)
        if samples is not None:
            return found
        return [each and replace(each, samples_s=each.samples_s[: self._samples]) for each in found]

    def timeline(self, module: HloModule) -> StepTimeline | None:
        """The timeline of a program that was modelled; None if it has none, or was recorded by an earlier version."""
        return self._timelines(key_of(module, self.devices)[0])


def modelled(profiles: ProfileSource) -> ProfileSource:
    """A source of profiles whose times are modelled: a program takes the same whenever it runs."""

    def once(modules: Sequence[HloModule], samples: Samples = None, /) -> Sequence[Profile | None]:
        del samples
        return profiles(modules)

    return once


def recorded(devices: DeviceDescription, database: ProfileDatabase) -> ProfileSource:
    """The source of the profiles that a database has of such devices."""

    def profiles(modules: Sequence[HloModule], samples: Samples = None, /) -> list[Profile | None]:
        del samples  # as many as were recorded
        found = [database.get(key_of(module, devices)[0]) for module in modules]
        # Profiles of pruned candidates may be missing. If all are missing, the database is of another program.
        return found if any(found) else list(replay(modules, devices, database))

    return profiles
