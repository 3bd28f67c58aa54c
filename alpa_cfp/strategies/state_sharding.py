"""Share state between the devices that would all keep the same part of it (CFP, section 4; ZeRO, arXiv 1910.02054).

Takes an annotated module, the updates in it and the strategies of its blocks; gives the shardings that the state and
its update have to get instead, which `apply.py` writes down. Invariants: what is shared is split along axes that do not
split it already, in equal parts; an array that cannot be split so stays as it is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from alpa_cfp.analysis.blocks import Blocks
from alpa_cfp.analysis.graph import Graph, itemsize
from alpa_cfp.analysis.updates import Update
from alpa_cfp.costs import Work
from alpa_cfp.spmd.partition import Collective
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding


@dataclass(frozen=True, slots=True)
class StateShardings:
    """Shardings of shared state.

    Attributes:
        parameters: For the numbers of some parameters how they are kept.
        ops: For the indices of some ops how their results lie.
    """

    parameters: dict[int, ArraySharding]
    ops: dict[int, ArraySharding]


def find_state_shardings(
    blocks: Blocks,
    updates: Sequence[Update],
    strategies: Sequence[BlockStrategy],
    inputs: Sequence[ArraySharding],
    fixed: frozenset[int] = frozenset(),
) -> StateShardings:
    """What the strategies share.

    Args:
        blocks: The blocks of the module.
        updates: Its updates.
        strategies: One for each block.
        inputs: How its parameters lie where state is kept as it is used.
        fixed: Numbers of parameters that have to stay where they are.
    """
    state_shardings = StateShardings({}, {})
    for update in updates:
        block = blocks.block_of_op[update.ops[0]]
        kept = StateSharding.REPLICATED if block is None else strategies[block].state_sharding
        arrays = (*update.weights, *update.moments)
        if kept is StateSharding.REPLICATED or fixed.intersection(arrays):
            continue
        shape = blocks.graph.shape(blocks.graph.parameters[arrays[0]])
        sharding = shard_further(inputs[arrays[0]], shape)
        if sharding == inputs[arrays[0]]:
            continue
        state_shardings.parameters.update(
            dict.fromkeys(arrays if kept is StateSharding.ZERO3 else update.moments, sharding)
        )
        state_shardings.ops.update(dict.fromkeys(update.ops, sharding))
    return state_shardings


def work_with_sharded_state(
    graph: Graph, updates: Sequence[Update], used: Sequence[ArraySharding], state_shardings: StateShardings, work: Work
) -> Work:
    """The work of a block of which `state_shardings` is shared, from its `work` without that.

    Sums of gradients become reduce-scatters, new weights are gathered, and the update writes only a part.

    Args:
        graph: The graph of the block.
        updates: Its updates.
        used: How its parameters lie where nothing is shared.
        shared: What is shared.
        work: Its work where nothing is.
    """
    weight_bytes, written, parts = 0, work.written_bytes, 1
    for update in updates:
        if update.ops[0] in state_shardings.ops:
            arrays = (*update.weights, *update.moments)
            shape, sharding = graph.shape(graph.parameters[arrays[0]]), used[arrays[0]]
            size = math.prod(sharding.local_shape(shape)) * itemsize(graph.values[graph.parameters[arrays[0]]].dtype)
            parts = sharding.mesh.num_devices // math.prod(axis.size for axis in sharding.axes)
            weight_bytes += size * len(update.weights)
            written -= size * len(arrays) * (1 - 1 / parts)
    if not weight_bytes:
        return replace(work, written_bytes=max(written, 0.0))
    sums = [each for each in work.collectives if each.kind == "all-reduce" and each.size_bytes >= weight_bytes]
    others = list(work.collectives)
    if sums:
        others.remove(sums[0])
        rest = replace(sums[0], size_bytes=sums[0].size_bytes - weight_bytes)
        scattered = Collective("reduce-scatter", weight_bytes, sums[0].group_size)
        others += [scattered, *([rest] if rest.size_bytes else [])]
    gathered = Collective("all-gather", weight_bytes // parts, parts)
    return replace(work, written_bytes=max(written, 0.0), collectives=(*others, gathered))


def shard_further(sharding: ArraySharding, shape: Sequence[int]) -> ArraySharding:
    """`sharding`, with the axes that do not split an array of `shape` splitting it, too, along outer dims.

    What is gathered or scattered along an outer dim is in one piece on each device, so that all of a step's weights can
    be gathered together without being laid out anew.
    """
    axes = sharding.mesh.remaining(sharding.axes)
    # All along one dim, so that it is one communication, or else each where it can.
    for group in ([axes], [(axis,) for axis in sorted(axes, key=lambda axis: -axis.size)]):
        result = sharding
        for part in group:
            result = _split_further(result, shape, part)
        if result != sharding:
            break
    return result


def _split_further(sharding: ArraySharding, shape: Sequence[int], axes: tuple[Axis, ...]) -> ArraySharding:
    """`sharding`, with the outermost dim whose parts `axes` divide split along them, too."""
    count = math.prod(axis.size for axis in axes)
    target = next((dim for dim, part in enumerate(sharding.local_shape(shape)) if part % count == 0), None)
    if target is None:
        return sharding
    dims = (((*old, *axes) if dim == target else old) for dim, old in enumerate(sharding.dims))
    return ArraySharding(sharding.mesh, tuple(dims))
