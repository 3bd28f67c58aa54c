"""The settings of Alpa's ILP for a case, and the selection of the fastest.

The shape of the logical mesh decides much of what the ILP can do: on 2x4 it may not split a batch over all devices
unless `allow_mixed_mesh_shape` is set, on 1x8, of the same devices, it may. Alpa tries all shapes where it chooses
stages (`get_all_submesh_autosharding_config_choices`, stage_construction.py), and its own suites set the option. So a
comparison with one shape alone would be one with a handicap. Invariant: no step that is quoted chose the setting.
"""

import gc
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from alpa_cfp_bench.case import Effort
from alpa_cfp_bench.methods import Planned, Setting
from alpa_cfp_bench.timing import interleave, pool
from alpa_on_jax.errors import AutoShardingInfeasibleError, BatchDimError

logger = logging.getLogger(__name__)

# At most so many copies and rounds tell which setting is the fastest.
_COPIES, _ROUNDS = 2, 20


@dataclass(frozen=True, slots=True)
class Best:
    """The setting whose program is the fastest.

    Attributes:
        setting: It.
        planning_s: What planning and compiling with all settings took, in seconds.
        median_s: What a step takes with each, in seconds, in the order in which they were tried; equal for equal
            programs, NaN where there is but one program and nothing was timed.
    """

    setting: Setting
    planning_s: float
    median_s: dict[Setting, float]

    @property
    def programs(self) -> int:
        """How many different programs there are."""
        return len(set(self.median_s.values()))


def settings(num_devices: int) -> list[Setting]:
    """Each shape of one or two axes, the latter with and without plans for one axis mixed in."""
    found = []
    for rows in range(1, num_devices + 1):
        if num_devices % rows == 0:
            name, has_two_axes = f"{rows}x{num_devices // rows}", 1 < rows < num_devices
            found += [Setting(name), *([Setting(name, mixed=True)] if has_two_axes else [])]
    return found


def best_setting(plan: Callable[[Setting], Planned], among: Sequence[Setting], first: Setting, effort: Effort) -> Best:
    """Plan with each setting, run the different programs interleaved, and take the fastest.

    Args:
        plan: Plans and compiles.
        among: The settings.
        first: The one of them that is taken where all programs are the same.
        effort: Of what is quoted later; here no more than that.

    Raises:
        AutoShardingInfeasibleError, BatchDimError: there is no plan with any of them.
    """
    started, planned, failure = time.perf_counter(), dict[Setting, Planned](), None
    for setting in sorted(among, key=lambda each: each != first):
        try:
            planned[setting] = plan(setting)
        except (AutoShardingInfeasibleError, BatchDimError) as error:
            logger.warning("Alpa's ILP has no plan for %s: %s", setting, error)
            failure = error
    planning_s = time.perf_counter() - started
    if not planned:
        assert failure is not None
        raise failure
    # Of equal programs one runs; what has no text is taken for different.
    same = {setting: each.text or str(setting) for setting, each in planned.items()}
    leaders = {text: setting for setting, text in reversed(same.items())}
    if len(leaders) == 1:
        return Best(next(iter(planned)), planning_s, dict.fromkeys(planned, math.nan))
    copies = {setting: [planned[setting]] for setting in leaders.values()}
    planned.clear()
    for setting, each in copies.items():
        each += [plan(setting) for _ in range(1, min(effort.copies, _COPIES))]
    programs = {f"{setting} {i}": one.program for setting, each in copies.items() for i, one in enumerate(each)}
    timed = interleave(programs, min(effort.rounds, _ROUNDS), seed=effort.seed)
    medians = {
        setting: pool([timed[f"{setting} {i}"] for i in range(len(each))]).median_s for setting, each in copies.items()
    }
    del copies, programs
    gc.collect()
    fastest = min(medians, key=lambda setting: medians[setting])
    return Best(fastest, planning_s, {setting: medians[leaders[text]] for setting, text in same.items()})
