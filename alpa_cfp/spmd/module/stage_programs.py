"""What a planner says of one of the programs of a pipeline stage: what it costs, and how its boundary is sharded."""

from dataclasses import dataclass

from alpa_cfp.spmd.shardings.sharding import ArraySharding

# What a device has of which nothing is known: alpa divides what is left by what a micro-batch needs.
NO_LIMIT_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """What one of a stage's programs costs on its mesh.

    Attributes:
        time_s: Of one micro-batch, without the sums of gradients that are done once a step.
        temporary_bytes: What a device holds beside arguments and results while it runs.
    """

    time_s: float
    temporary_bytes: int


@dataclass(frozen=True, slots=True)
class BoundaryShardings:
    """The shardings of the arguments and of the results of one of a stage's programs, in their order."""

    inputs: tuple[ArraySharding, ...]
    outputs: tuple[ArraySharding, ...]
