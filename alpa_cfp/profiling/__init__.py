"""Profiling: what partitioned programs take, measured on a mesh or replayed from the database."""

from alpa_cfp.profiling.keys import DeviceDescription, canonical_text, key_of
from alpa_cfp.profiling.measure import Measurer, Profiler, measure
from alpa_cfp.profiling.options import MeasureOptions
from alpa_cfp.profiling.replay import recorded_devices, replay

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
