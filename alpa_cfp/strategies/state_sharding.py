"""Splits state over the devices that would otherwise hold copies of it (CFP, section 4; ZeRO, arXiv 1910.02054).

Takes the shardings of a module's parameters, its updates and the strategies of its blocks; gives the new shardings of
the state and its updates, which `apply.annotate` writes. Invariants: state is split further along mesh axes that do not
split it already, in equal parts; an array that cannot be split so keeps its sharding, and so does a small vector.
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

# Vectors with as many elements, at most, are not split, nor are their moments: biases and scales of norms. They are few
# bytes; gathered in one array with others, their elements lie apart, and what adds them to activations reads them so,
# again for each sample. The number is DeepSpeed's default of `stage3_param_persistence_threshold`, which is for
# parameters of any shape; here matrices are always split.
_WHOLE_VECTOR = 100_000


@dataclass(frozen=True, slots=True)
class StateShardings:
    """The shardings of state that is split further.

    Attributes:
        parameters: By the numbers of parameters.
        ops: Of the results of ops, by their indices.
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
    """Returns the shardings of the state that the strategies split further.

    Args:
        blocks: The blocks of the module.
        updates: Its updates.
        strategies: One for each block.
        inputs: The shardings of its parameters under `StateSharding.REPLICATED`.
        fixed: Numbers of parameters whose shardings must not change.
    """
    state_shardings = StateShardings({}, {})
    for update in updates:
        block = blocks.block_of_op[update.ops[0]]
        state_sharding = StateSharding.REPLICATED if block is None else strategies[block].state_sharding
        arrays = (*update.weights, *update.moments)
        if state_sharding is StateSharding.REPLICATED or fixed.intersection(arrays):
            continue
        shape = blocks.graph.shape(blocks.graph.parameters[arrays[0]])
        if math.prod(shape) == max(shape, default=1) <= _WHOLE_VECTOR:
            continue
        sharding = shard_further(inputs[arrays[0]], shape)
        if sharding == inputs[arrays[0]]:
            continue
        state_shardings.parameters.update(
            dict.fromkeys(arrays if state_sharding is StateSharding.ZERO3 else update.moments, sharding)
        )
        state_shardings.ops.update(dict.fromkeys(update.ops, sharding))
    return state_shardings


def work_with_sharded_state(
    graph: Graph, updates: Sequence[Update], used: Sequence[ArraySharding], state_shardings: StateShardings, work: Work
) -> Work:
    """Returns the work of a block with `state_shardings`, derived from its `work` under `StateSharding.REPLICATED`.

    Sums of gradients become reduce-scatters, new weights are gathered, and the update writes only a part.

    Args:
        graph: The graph of the block.
        updates: Its updates.
        used: The shardings of its parameters under `StateSharding.REPLICATED`.
        state_shardings: The shardings of the state that is split further.
        work: Its work under `StateSharding.REPLICATED`.
    """
    weights, memory, parts = list[int](), work.memory_bytes, 1
    for update in updates:
        if update.ops[0] in state_shardings.ops:
            arrays = (*update.weights, *update.moments)
            shape, sharding = graph.shape(graph.parameters[arrays[0]]), used[arrays[0]]
            size = math.prod(sharding.local_shape(shape)) * itemsize(graph.values[graph.parameters[arrays[0]]].dtype)
            parts = sharding.mesh.num_devices // math.prod(axis.size for axis in sharding.axes)
            weights += [size] * len(update.weights)
            memory -= size * len(arrays) * (1 - 1 / parts)
    if not sum(weights):
        return replace(work, memory_bytes=max(memory, 0.0))
    others = list(work.collectives)
    for each, own in _sums_of(weights, [each for each in others if each.kind == "all-reduce"], parts):
        others.remove(each)
        rest = _without(each, Collective.of_arrays("all-reduce", own, each.group_size))
        scattered = Collective("reduce-scatter", sum(own), each.group_size, is_aside=True)
        others += [scattered, *([rest] if rest.size_bytes else [])]
    gathered = Collective.of_arrays("all-gather", [size // parts for size in weights], parts)
    gathered = replace(gathered, is_aside=True)
    return replace(work, memory_bytes=max(memory, 0.0), collectives=(*others, gathered))


def _sums_of(weights: Sequence[int], sums: Sequence[Collective], parts: int) -> list[tuple[Collective, list[int]]]:
    """The all-reduces in which gradients are summed, each with the sizes of those that have room in it.

    Args:
        weights: The sizes of the gradients.
        sums: All all-reduces of the block.
        parts: The devices over which the state is split: mostly those over which gradients are summed.
    """
    left, found = sorted(weights, reverse=True), list[tuple[Collective, list[int]]]()
    for each in sorted(sums, key=lambda each: (each.group_size != parts, -each.size_bytes)):
        own, room = list[int](), each.size_bytes
        for size in left:
            if size <= room:
                own.append(size)
                room -= size
        for size in own:
            left.remove(size)
        if own:
            found.append((each, own))
    return found


def _without(collective: Collective, part: Collective) -> Collective:
    """What remains of a collective without some of its arrays."""
    return replace(
        collective,
        size_bytes=collective.size_bytes - part.size_bytes,
        large_arrays=max(collective.large_arrays - part.large_arrays, 0),
        small_arrays=max(collective.small_arrays - part.small_arrays, 0),
        small_bytes=max(collective.small_bytes - part.small_bytes, 0),
    )


def shard_further(sharding: ArraySharding, shape: Sequence[int]) -> ArraySharding:
    """Returns `sharding` with an array of `shape` also split along the remaining axes, along outer dims.

    Along an outer dim, the part of a device is contiguous, so that all weights of a step can be gathered in one
    collective without a transpose.
    """
    axes = sharding.mesh.remaining(sharding.axes)
    # All axes along one dim, for a single collective; otherwise each axis along the first dim that it divides.
    for group in ([axes], [(axis,) for axis in sorted(axes, key=lambda axis: -axis.size)]):
        result = sharding
        for part in group:
            result = _split_further(result, shape, part)
        if result != sharding:
            break
    return result


def _split_further(sharding: ArraySharding, shape: Sequence[int], axes: tuple[Axis, ...]) -> ArraySharding:
    """Returns `sharding` with the outermost dim whose local size `axes` divide also split along them."""
    count = math.prod(axis.size for axis in axes)
    target = next((dim for dim, part in enumerate(sharding.local_shape(shape)) if part % count == 0), None)
    if target is None:
        return sharding
    dims = (((*old, *axes) if dim == target else old) for dim, old in enumerate(sharding.dims))
    return ArraySharding(sharding.mesh, tuple(dims))
