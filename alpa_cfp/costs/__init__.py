"""Costs that are counted in programs, not measured: work, time by the rates of a mesh, resharding, memory."""

from alpa_cfp.costs.communication import CommunicationCosts
from alpa_cfp.costs.memory import BlockMemory, memory_of
from alpa_cfp.costs.rates import Rates, crossing_bytes, estimated_s, fitted
from alpa_cfp.costs.resharding import resharding_collectives, resharding_matrices
from alpa_cfp.costs.work import LocalOp, LocalProgram, Work, read_local, work_of

__all__ = [
    "BlockMemory",
    "CommunicationCosts",
    "LocalOp",
    "LocalProgram",
    "Rates",
    "Work",
    "crossing_bytes",
    "estimated_s",
    "fitted",
    "memory_of",
    "read_local",
    "resharding_collectives",
    "resharding_matrices",
    "work_of",
]
