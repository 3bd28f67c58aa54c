"""Costs by counting: work, rates, resharding, memory."""

from alpa_cfp.costs.memory import saved_and_transient
from alpa_cfp.costs.rates import Rates, crossing_bytes, estimated_s, fitted
from alpa_cfp.costs.resharding import resharding_amounts, resharding_matrix
from alpa_cfp.costs.work import LocalOp, LocalProgram, Work, read_local, work_of

__all__ = [
    "LocalOp",
    "LocalProgram",
    "Rates",
    "Work",
    "crossing_bytes",
    "estimated_s",
    "fitted",
    "read_local",
    "resharding_amounts",
    "resharding_matrix",
    "saved_and_transient",
    "work_of",
]
