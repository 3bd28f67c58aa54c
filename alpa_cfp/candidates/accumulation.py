"""What of a block happens once a step, though the step has several micro-batches.

Gradients are summed over devices, and state is updated, after the last one. Takes a block under a strategy; gives the
`Work` of that. Invariant: what shares state writes no more than what does not.
"""

import math
from collections.abc import Sequence

from alpa_cfp.analysis.blocks import ParallelBlock
from alpa_cfp.analysis.contractions import Side
from alpa_cfp.analysis.graph import Graph, itemsize
from alpa_cfp.analysis.updates import Update
from alpa_cfp.costs import Work
from alpa_cfp.spmd.partition import Collective
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding

# Along these, each device has gradients of some samples.
_SAMPLES = (Side.LEFT, Side.BATCH)
# Of what a micro-batch takes with everything, at least this part is taken again by each.
LEAST_EACH = 0.2


def per_step_work(
    graph: Graph,
    block: ParallelBlock,
    strategy: BlockStrategy,
    mesh: LogicalMesh,
    updates: Sequence[Update],
    used: Sequence[ArraySharding],
) -> Work:
    """The work of the sum of gradients and of the update.

    Args:
        graph: The graph of the block.
        block: The block.
        strategy: Its strategy.
        mesh: The logical mesh.
        updates: The updates in `graph`.
        used: How its parameters lie where state is kept as it is used.
    """
    samples = {
        axis.index
        for axis in mesh.axes
        if (factor := strategy.factors[axis.index]) is not None and block.factors[factor].side in _SAMPLES
    }
    written, sums = 0.0, {}
    for update in updates:
        number = update.weights[0]
        value, sharding = graph.values[graph.parameters[number]], used[number]
        size = math.prod(sharding.local_shape(value.shape)) * itemsize(value.dtype)
        others = sharding.mesh.remaining(sharding.axes)
        shares = 1 if strategy.state_sharding is StateSharding.REPLICATED else math.prod(axis.size for axis in others)
        written += size * (len(update.weights) + len(update.moments)) / shares
        group = math.prod(axis.size for axis in others if axis.index in samples)
        if group > 1:
            sums[group] = sums.get(group, 0) + size
    collectives: list[Collective] = []
    for group, size in sorted(sums.items()):
        if strategy.state_sharding is StateSharding.REPLICATED:
            collectives.append(Collective("all-reduce", size, group))
        else:
            collectives.append(Collective("reduce-scatter", size, group))
            if strategy.state_sharding is StateSharding.ZERO2:
                collectives.append(Collective("all-gather", size // group, group))
    return Work(0.0, written, tuple(collectives))


def step_time_s(once_s: float, estimated_s: float, total_s: float, micro_batches: int) -> float:
    """What a step takes of which `total_s` is one micro-batch with everything.

    By estimates that is `estimated_s`, and `once_s` of it is done once a step. Their ratio counts: an estimate's error
    is mostly one of the mesh's rates, in both alike, and what is left of a difference counts for each micro-batch.
    """
    if micro_batches == 1 or math.isinf(total_s):
        return total_s
    each = micro_batch_s(once_s, estimated_s) / estimated_s if estimated_s > 0 else 1.0
    return total_s * (1 + (micro_batches - 1) * each)


def micro_batch_s(once_s: float, total_s: float) -> float:
    """What a further micro-batch takes of which `total_s` is one with everything, and `once_s` of that is done once."""
    return max(total_s - once_s, LEAST_EACH * total_s)
