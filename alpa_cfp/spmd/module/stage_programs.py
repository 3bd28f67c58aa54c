"""A planner's results for one of the programs of a pipeline stage: its cost, and the shardings of its boundary."""

from dataclasses import dataclass

from alpa_cfp.spmd.shardings.sharding import ArraySharding

# The memory of a device of which nothing is known: alpa divides the memory that is left by that of a micro-batch.
NO_LIMIT_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """The cost of one of a stage's programs on its mesh.

    Attributes:
        time_s: Of one micro-batch, without the sums of gradients that are done once a step.
        temporary_bytes: Memory that a device uses beside arguments and results while it runs.
    """

    time_s: float
    temporary_bytes: int


@dataclass(frozen=True, slots=True)
class BoundaryShardings:
    """The shardings of the arguments and of the results of one of a stage's programs, in their order."""

    inputs: tuple[ArraySharding, ...]
    outputs: tuple[ArraySharding, ...]
