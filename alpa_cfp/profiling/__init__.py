"""Profiling: what partitioned programs take, measured on a mesh or replayed from the database."""

from typing import TYPE_CHECKING

from alpa_cfp.lazily import lazily

if TYPE_CHECKING:
    from alpa_cfp.profiling.keys import DeviceDescription, canonical_text, key_of
    from alpa_cfp.profiling.options import MeasureOptions
    from alpa_cfp.profiling.profiler import Measurer, Profiler, measure
    from alpa_cfp.profiling.replaying import recorded_devices, replay

__all__ = [
    "DeviceDescription",
    "MeasureOptions",
    "Measurer",
    "Profiler",
    "canonical_text",
    "key_of",
    "measure",
    "recorded_devices",
    "replay",
]

# They import jax, and the processes that only pass on what is measured do without it.
__getattr__ = lazily(
    __name__,
    {
        "DeviceDescription": "alpa_cfp.profiling.keys",
        "MeasureOptions": "alpa_cfp.profiling.options",
        "Measurer": "alpa_cfp.profiling.profiler",
        "Profiler": "alpa_cfp.profiling.profiler",
        "canonical_text": "alpa_cfp.profiling.keys",
        "key_of": "alpa_cfp.profiling.keys",
        "measure": "alpa_cfp.profiling.profiler",
        "recorded_devices": "alpa_cfp.profiling.replaying",
        "replay": "alpa_cfp.profiling.replaying",
    },
)
