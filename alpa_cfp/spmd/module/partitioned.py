"""What partitioning gives: the program of one device, and what it leaves to be done across devices."""

from dataclasses import dataclass, field

from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis, LogicalMesh


class UnsupportedByShardyError(Exception):
    """A program, or the way in which it is sharded, is not covered by the partitioner made of Shardy's passes."""


class HalfLocalError(UnsupportedByShardyError):
    """The same, found when a part of an op had been changed already, so that nothing else can be made of it."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One communication op of a partitioned program.

    Attributes:
        kind: XLA's name: "all-reduce", "all-gather", "reduce-scatter", "all-to-all" or "collective-permute".
        size_bytes: Size of one device's operand.
        group_size: How many devices take part together (two in a permutation).
    """

    kind: str
    size_bytes: int
    group_size: int


@dataclass(frozen=True, slots=True)
class PartitionedProgram:
    """A program that is ready to be compiled.

    Attributes:
        partitioner: Which one made it: "shardy" (the module is one device's program with explicit collectives, to be
            run with one replica a device) or "xla" (the module is the whole program with sharding annotations, which
            XLA partitions while it compiles).
        bytecode: The module.
        mesh: The logical mesh.
        input_shardings, output_shardings: How the global arrays lie on the mesh.
        unreduced_outputs: For each result the mesh axes over which the devices' parts still have to be summed.
        collectives: The communication in the module; empty where the partitioner is "xla", which decides later.
        draws_random: Whether the module has the hidden last parameter for the random state (see `random_ops`).
        fallback_reason: Why Shardy's passes did not make it; empty where they did.
        prediction: Where XLA partitions, what Shardy's passes make of it when each op that they do not cover is
            computed whole on every device. It is read for what devices may do and communicate, and never run. None
            where it was not asked for, or cannot be made.
    """

    partitioner: str
    bytecode: bytes = field(repr=False)
    mesh: LogicalMesh
    input_shardings: tuple[ArraySharding, ...]
    output_shardings: tuple[ArraySharding, ...]
    unreduced_outputs: tuple[tuple[Axis, ...], ...]
    collectives: tuple[Collective, ...] = ()
    draws_random: bool = False
    fallback_reason: str = ""
    prediction: "PartitionedProgram | None" = field(default=None, repr=False)

    @property
    def counted(self) -> "PartitionedProgram":
        """The program that says best what devices do and communicate: the prediction, where there is one."""
        return self.prediction or self
