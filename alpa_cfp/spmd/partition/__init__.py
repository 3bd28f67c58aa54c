"""Partitioning: from an annotated module to a program that can be compiled.

One interface, `partition`, for every user: Shardy's passes in Python where they cover the program (communication is
then known before compiling, and gradient reductions can be moved), XLA's partitioner where they do not. Programs that
are only to be run go through `partition_to_run`, which chooses between the two. Which one made
a program, and why, is recorded with it; where XLA does, what it may communicate can be predicted (`whole_ops`).
"""

import logging
from collections.abc import Iterable
from dataclasses import replace

from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.module.partitioned import Collective, PartitionedProgram, UnsupportedByShardyError
from alpa_cfp.spmd.partition.grad_sync import accumulators_of
from alpa_cfp.spmd.partition.shardy import partition_with_shardy
from alpa_cfp.spmd.partition.xla import leave_to_xla

__all__ = [
    "Collective",
    "PartitionedProgram",
    "UnsupportedByShardyError",
    "accumulators_of",
    "partition",
    "partition_to_run",
]

logger = logging.getLogger(__name__)


def partition_to_run(
    module: HloModule, accumulators: Iterable[int] = (), *, predicts: bool = False
) -> PartitionedProgram:
    """Partition an annotated module for running it.

    Shardy's passes are tried where gradient reductions are to be moved, and where auto-sharding has decided the
    communication, which they follow to the letter. Elsewhere XLA partitions, as it does for `jax.jit`, and the program
    that comes out is the one that `jax.jit` would run. The programs of Shardy's passes are as fast on the whole, but
    not one by one (benchmarks/step_overhead).

    Args:
        module: The annotated module; it is not changed.
        accumulators: See `partition`.
        predicts: Whether to predict what a solved module communicates that XLA partitions (`prediction` of the result).
    """
    accumulators = tuple(accumulators)
    if accumulators or module.solved:
        program = partition(module, accumulators)
        if predicts and program.partitioner == "xla":
            return replace(program, prediction=_predicted(module))
        return program
    return leave_to_xla(module, "it accumulates no gradients")


def partition(module: HloModule, accumulators: Iterable[int] = ()) -> PartitionedProgram:
    """Partition an annotated module.

    Args:
        module: The annotated module; it is not changed.
        accumulators: Results of the form `old + gradient` whose reduction over devices may be left to the caller; how
            much was left is in `unreduced_outputs` of the result.
    """
    accumulators = tuple(accumulators)
    attempts = (False, True) if accumulators or module.solved else (False,)
    reason = ""
    for whole_dims in attempts:
        try:
            program = partition_with_shardy(module, accumulators, whole_dims=whole_dims)
        except UnsupportedByShardyError as error:
            reason = str(error)
        else:
            logger.info("%s: partitioned by Shardy's passes, %d collectives", module.name, len(program.collectives))
            return program
    if accumulators:
        logger.warning("%s: gradients are reduced in every micro-batch, because of %s", module.name, reason)
    logger.info("%s: left to XLA's partitioner, because of %s", module.name, reason)
    return leave_to_xla(module, reason)


def _predicted(module: HloModule) -> PartitionedProgram | None:
    try:
        return partition_with_shardy(module, (), whole_dims=True, whole_ops=True)
    except UnsupportedByShardyError as error:
        logger.info("%s: what it communicates cannot be predicted, because of %s", module.name, error)
        return None
