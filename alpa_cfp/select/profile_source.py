"""Where profiles come from: `CFPOption(costs=...)`.

Takes a function that gives the profiles of modules: measured on a mesh's devices, or as they were recorded; keeps
account of which it was asked for.
"""

from collections.abc import Sequence

from alpa_cfp.database import Profile, ProfileDatabase, ProfileKey
from alpa_cfp.profiling import DeviceDescription, key_of, replay
from alpa_cfp.select.plan_search import Profiles
from alpa_cfp.spmd.module.hlo_module import HloModule


class Source:
    """Gives the profiles of modules, and knows of which it was asked.

    Args:
        devices: The devices that the profiles are of.
        profiles: Gives them.

    Attributes:
        keys: Those of all profiles that it was asked for.
    """

    def __init__(self, devices: DeviceDescription, profiles: Profiles):
        self.devices, self._profiles = devices, profiles
        self.keys: list[ProfileKey] = []

    def __call__(self, modules: Sequence[HloModule], samples: int | None = None, /) -> Sequence[Profile | None]:
        self.keys += [key_of(module, self.devices)[0] for module in modules]
        return self._profiles(modules, samples)


def recorded(devices: DeviceDescription, database: ProfileDatabase) -> Profiles:
    """What gives profiles as they were recorded on such devices."""

    def profiles(modules: Sequence[HloModule], samples: int | None = None, /) -> list[Profile | None]:
        del samples  # as many as were recorded
        found = [database.get(key_of(module, devices)[0]) for module in modules]
        # What was left out because something else was better then is left out now; if all is, it is another program.
        return found if any(found) else list(replay(modules, devices, database))

    return profiles
