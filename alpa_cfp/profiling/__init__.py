"""Profiling on a mesh of this process: what partitioned programs take, kept in the profile database."""

from alpa_cfp.profiling.calibrate import calibrate
from alpa_cfp.profiling.keys import canonical_text, key_of
from alpa_cfp.profiling.measure import MeasureOptions, measure

__all__ = ["MeasureOptions", "calibrate", "canonical_text", "key_of", "measure"]
