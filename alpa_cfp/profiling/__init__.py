"""Profiling: time and memory of partitioned programs, measured on a mesh or replayed from the database."""

from typing import TYPE_CHECKING

from alpa_cfp.lazily import lazily

if TYPE_CHECKING:
    from alpa_cfp.profiling.keys import DeviceDescription, canonical_text, key_of
    from alpa_cfp.profiling.options import MeasureOptions
    from alpa_cfp.profiling.profiler import Measurer, Profiler
    from alpa_cfp.profiling.replaying import recorded_devices, replay
    from alpa_cfp.profiling.time_budget import TimeBudget

__all__ = [
    "DeviceDescription",
    "MeasureOptions",
    "Measurer",
    "Profiler",
    "TimeBudget",
    "canonical_text",
    "key_of",
    "recorded_devices",
    "replay",
]

# These modules import jax, and a supervisor does without it.
__getattr__ = lazily(
    __name__,
    {
        "DeviceDescription": "alpa_cfp.profiling.keys",
        "MeasureOptions": "alpa_cfp.profiling.options",
        "Measurer": "alpa_cfp.profiling.profiler",
        "Profiler": "alpa_cfp.profiling.profiler",
        "TimeBudget": "alpa_cfp.profiling.time_budget",
        "canonical_text": "alpa_cfp.profiling.keys",
        "key_of": "alpa_cfp.profiling.keys",
        "recorded_devices": "alpa_cfp.profiling.replaying",
        "replay": "alpa_cfp.profiling.replaying",
    },
)
