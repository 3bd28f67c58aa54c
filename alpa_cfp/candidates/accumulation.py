"""The work of a block that is done once a step, however many micro-batches the step has.

Gradients are summed over devices, and state is updated, after the last micro-batch. Takes a block and a strategy; gives
the `Work` of that. Invariant: with ZeRO it writes no more than without.
"""

import math
from collections import Counter
from collections.abc import Sequence

from alpa_cfp.analysis.blocks import ParallelBlock
from alpa_cfp.analysis.contractions import SAMPLES
from alpa_cfp.analysis.graph import Graph, itemsize
from alpa_cfp.analysis.updates import Update
from alpa_cfp.costs import Work
from alpa_cfp.spmd.partition import Collective
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding
from alpa_cfp.strategies.state_sharding import StateShardings

# The least share of a measured micro-batch, which includes the per-step work, that each further one takes.
MIN_MICRO_BATCH_SHARE = 0.2


def per_step_work(
    graph: Graph,
    block: ParallelBlock,
    strategy: BlockStrategy,
    mesh: LogicalMesh,
    updates: Sequence[Update],
    used: Sequence[ArraySharding],
    state_shardings: StateShardings | None = None,
) -> Work:
    """Returns the work of the sum of gradients and of the update.

    Args:
        graph: The graph of the block.
        block: The block.
        strategy: Its strategy.
        mesh: The logical mesh.
        updates: The updates in `graph`.
        used: The shardings of its parameters under `StateSharding.REPLICATED`.
        state_shardings: The state that the strategy splits further; None for none.
    """
    samples = {
        axis.index
        for axis in mesh.axes
        if (factor := strategy.factors[axis.index]) is not None and block.factors[factor].side in SAMPLES
    }
    written, summed, scattered = 0.0, Counter[int](), Counter[int]()
    for update in updates:
        number = update.weights[0]
        value, sharding = graph.values[graph.parameters[number]], used[number]
        size = math.prod(sharding.local_shape(value.shape)) * itemsize(value.dtype)
        others = sharding.mesh.remaining(sharding.axes)
        is_split = state_shardings is not None and update.ops[0] in state_shardings.ops
        parts = math.prod(axis.size for axis in others) if is_split else 1
        written += size * (len(update.weights) + len(update.moments)) / parts
        group = math.prod(axis.size for axis in others if axis.index in samples)
        if group > 1:
            (scattered if is_split else summed)[group] += size
    collectives = [Collective("all-reduce", size, group) for group, size in sorted(summed.items())]
    for group, size in sorted(scattered.items()):
        collectives.append(Collective("reduce-scatter", size, group))
        if strategy.state_sharding is StateSharding.ZERO2:
            collectives.append(Collective("all-gather", size // group, group))
    return Work(0.0, written, tuple(collectives))


def step_time_s(per_step_s: float, estimated_s: float, total_s: float, micro_batches: int) -> float:
    """Extrapolates the step time from one micro-batch that was measured with the per-step work.

    Only the ratio of the two estimates counts, since an estimate's error is mostly an error of the mesh's rates, which
    is in both alike.

    Args:
        per_step_s: The estimate of the per-step work.
        estimated_s: The estimate of one micro-batch with the per-step work.
        total_s: The measured time of one micro-batch with the per-step work.
        micro_batches: The number of micro-batches of a step.
    """
    if micro_batches == 1 or math.isinf(total_s):
        return total_s
    share = micro_batch_s(per_step_s, estimated_s) / estimated_s if estimated_s > 0 else 1.0
    return total_s * (1 + (micro_batches - 1) * share)


def micro_batch_s(per_step_s: float, total_s: float) -> float:
    """The time of one more micro-batch, if one with the per-step work takes `total_s` and that work `per_step_s`."""
    return max(total_s - per_step_s, MIN_MICRO_BATCH_SHARE * total_s)
