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
from alpa_cfp.strategies.block_strategy import BlockStrategy, Kept

# Along these, each device has gradients of some samples.
_SAMPLES = (Side.LEFT, Side.BATCH)
# Of what a micro-batch takes with everything, at least this part is taken again by each.
LEAST_EACH = 0.2


def once_a_step(
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
        shares = 1 if strategy.kept is Kept.AS_USED else math.prod(axis.size for axis in others)
        written += size * (len(update.weights) + len(update.moments)) / shares
        group = math.prod(axis.size for axis in others if axis.index in samples)
        if group > 1:
            sums[group] = sums.get(group, 0) + size
    collectives: list[Collective] = []
    for group, size in sorted(sums.items()):
        if strategy.kept is Kept.AS_USED:
            collectives.append(Collective("all-reduce", size, group))
        else:
            collectives.append(Collective("reduce-scatter", size, group))
            if strategy.kept is Kept.MOMENTS_SPLIT:
                collectives.append(Collective("all-gather", size // group, group))
    return Work(0.0, written, tuple(collectives))


def of_step(once_s: float, estimated_s: float, all_s: float, micro_batches: int) -> float:
    """What a step takes of which `all_s` is one micro-batch with everything.

    By estimates that is `estimated_s`, and `once_s` of it is done once a step. Their ratio counts: an estimate's error
    is mostly one of the mesh's rates, in both alike, and what is left of a difference counts for each micro-batch.
    """
    if micro_batches == 1 or math.isinf(all_s):
        return all_s
    each = of_micro_batch(once_s, estimated_s) / estimated_s if estimated_s > 0 else 1.0
    return all_s * (1 + (micro_batches - 1) * each)


def of_micro_batch(once_s: float, all_s: float) -> float:
    """What a further micro-batch takes of which `all_s` is one with everything, and `once_s` of that is done once."""
    return max(all_s - once_s, LEAST_EACH * all_s)
