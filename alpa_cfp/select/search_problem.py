"""The search problem of a program: one variable a block, one edge for each two blocks that exchange values.

Takes the candidates of each block, their costs and the mesh's rates; gives a `SearchProblem` that selects candidates.
A block's own time and memory are its candidates'; an edge costs what bringing the values that go from one block to the
other costs, from where the one leaves them to where the other needs them. Invariant: variables are in block order.
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from alpa_cfp.analysis.backward import backward_start, rematerialised_ranges
from alpa_cfp.analysis.blocks import Blocks
from alpa_cfp.analysis.graph import Graph, itemsize
from alpa_cfp.candidates.block_candidates import BlockCandidates
from alpa_cfp.costs import CommunicationCosts, resharding_matrices
from alpa_cfp.costs.buffers import Buffers, find_buffers
from alpa_cfp.costs.communication import CollectiveKey
from alpa_cfp.search import ClassTable, Edge, SearchProblem, Variable
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.propagation import donation_pairs
from alpa_cfp.spmd.shardings.sharding import ArraySharding


@dataclass(frozen=True, slots=True)
class BoundaryValue:
    """The sharding of a value at a block's boundary, for each candidate of the block."""

    block: int
    shardings: tuple[ArraySharding, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ReshardingEdge:
    """The resharding of all values that cross from one block to another.

    Candidates that have the same shardings of all these values are of one class: with several mesh axes there are few
    classes and many candidates.

    Attributes:
        first, second: The blocks.
        rows, columns: For each candidate of the first and of the second block its class.
        by_key: For each kind of collective and group size the collectives and bytes for each pair of classes
            (`resharding_matrices`).
        amounts: The sums of these.
    """

    first: int
    second: int
    rows: np.ndarray
    columns: np.ndarray
    by_key: dict[CollectiveKey, np.ndarray]
    amounts: np.ndarray

    def pair(self, choices: Sequence[int]) -> tuple[int, int]:
        """The classes of the candidates of a plan."""
        return int(self.rows[choices[self.first]]), int(self.columns[choices[self.second]])


@dataclass(frozen=True, slots=True, eq=False)
class Boundaries:
    """The part of the search problem that does not depend on the costs of single blocks.

    Attributes:
        state: For each block and each candidate, the bytes that a device holds during the whole step: parameters
            that this block uses first, and results.
        activation_bytes: For each block and each candidate, the bytes of its outputs that the backward pass needs.
        repeated_share: The part of what all ranges of `rematerialised_ranges` compute again that is there at once. The
            values of one range exist at the same time, and are freed before the next range begins: the largest range
            counts, and each range has a part in that, so that a plan of unequal layers counts as their mean.
        crossings: The resharding between blocks.
        places: The sharding in which each value leaves its block; for a parameter, that of its first use.
        arrays: The number of the program's arguments and results.
    """

    state: tuple[np.ndarray, ...]
    activation_bytes: tuple[np.ndarray, ...]
    repeated_share: float
    crossings: tuple[ReshardingEdge, ...]
    places: dict[int, BoundaryValue]
    arrays: int


def find_boundaries(
    module: HloModule, blocks: Blocks, block_candidates: Sequence[BlockCandidates], *, overlaps: bool = False
) -> Boundaries:
    """The boundaries of a program's blocks.

    Args:
        module: The whole module.
        blocks: Its blocks.
        block_candidates: The candidates of each block.
        overlaps: Whether collectives that can run beside contractions are told apart: those of weights.
    """
    graph = blocks.graph
    sources, uses = _sources_and_uses(module, graph, block_candidates)
    turn = backward_start(blocks)
    kept = _Kept.of(graph, sources)
    state, saved = (
        _bytes(graph, block_candidates, sources, values)
        for values in (_full(graph, _held(module, graph)), kept.after(range(turn)))
    )
    parts = [kept.after(part) for part in rematerialised_ranges(blocks)]
    sizes = [sum(math.prod(graph.shape(value)) * size for value, size in each.items()) for each in parts]
    share = max(sizes, default=0) / max(sum(sizes), 1)
    again = _bytes(graph, block_candidates, sources, {value: size for each in parts for value, size in each.items()})
    activation_bytes = tuple(
        once + np.ceil(share * repeated).astype(np.int64) for once, repeated in zip(saved, again, strict=True)
    )
    weights = set(graph.parameters) | {graph.origin(graph.results[result]) for result, _ in donation_pairs(module)}
    crossing: dict[tuple[int, int], list[_Crossing]] = {}
    for value, end in uses:
        source = sources.get(value)
        if source is not None and source.block != end.block:
            pair = min(source.block, end.block), max(source.block, end.block)
            each = _Crossing(value, source, end, is_aside=overlaps and value in weights)
            crossing.setdefault(pair, []).append(each)
    crossings = (_resharding_edge(graph, *pair, values) for pair, values in sorted(crossing.items()))
    crossings = tuple(each for each in crossings if each.by_key)
    arrays = len(graph.parameters) + len(graph.results)
    return Boundaries(state, activation_bytes, share, crossings, sources, arrays)


@dataclass(frozen=True, slots=True)
class _Crossing:
    """A value that crosses from one block to another."""

    value: int
    source: BoundaryValue
    end: BoundaryValue
    is_aside: bool

    def at(self, block: int) -> tuple[ArraySharding, ...]:
        """Its sharding for each candidate of one of the two blocks."""
        return self.source.shardings if self.source.block == block else self.end.shardings


def _resharding_edge(graph: Graph, first: int, second: int, values: Sequence[_Crossing]) -> ReshardingEdge:
    """The resharding of values between two blocks."""
    (rows, firsts), (columns, seconds) = (_classes([each.at(block) for each in values]) for block in (first, second))
    by_key: dict[CollectiveKey, np.ndarray] = {}
    for each in values:
        shape, size = graph.shape(each.value), itemsize(graph.values[each.value].dtype)
        ends = [[each.at(block)[i] for i in of] for block, of in ((first, firsts), (second, seconds))]
        sources, targets = ends if each.source.block == first else reversed(ends)
        for key, matrix in resharding_matrices(shape, size, sources, targets, is_aside=each.is_aside).items():
            by_key[key] = by_key.get(key, 0.0) + (matrix if each.source.block == first else matrix.swapaxes(0, 1))
    amounts = sum(by_key.values(), np.zeros((len(firsts), len(seconds), 2)))
    return ReshardingEdge(first, second, rows, columns, by_key, amounts)


def _classes(shardings: Sequence[Sequence[ArraySharding]]) -> tuple[np.ndarray, list[int]]:
    """For each candidate its class, and the first candidate of each class.

    Args:
        shardings: For each value its sharding for each candidate.
    """
    number_of: dict[Hashable, int] = {}
    firsts: list[int] = []
    classes = np.zeros(len(shardings[0]), np.int64)
    for candidate, own in enumerate(zip(*shardings, strict=True)):
        number = number_of.setdefault(own, len(firsts))
        if number == len(firsts):
            firsts.append(candidate)
        classes[candidate] = number
    return classes, firsts


def make_problem(
    block_candidates: Sequence[BlockCandidates],
    boundaries: Boundaries,
    times_s: Sequence[Sequence[float]],
    between_s: Sequence[ClassTable],
) -> SearchProblem:
    """The search problem.

    Args:
        block_candidates: The candidates of each block of a program.
        boundaries: Their boundaries.
        times_s: For each block, the time of each candidate by itself in a step; inf for one that cannot be run.
        between_s: For each of the boundaries' crossings, its time in a step for each pair of candidates.
    """
    variables = tuple(_variable(block, boundaries, times_s[block.block]) for block in block_candidates)
    edges = tuple(
        Edge(_name(each.first), _name(each.second), seconds)
        for each, seconds in zip(boundaries.crossings, between_s, strict=True)
    )
    return SearchProblem(variables, edges)


def resharding_s(
    edge: ReshardingEdge, costs: CommunicationCosts, factor: Callable[[CollectiveKey], float] = lambda key: 1.0
) -> ClassTable:
    """The seconds of a micro-batch that a crossing takes for each pair of classes of candidates.

    Args:
        edge: The crossing.
        costs: The estimates of collectives.
        factor: The factor of collectives to their estimates, by kind and group size.
    """
    seconds = np.zeros(edge.amounts.shape[:2])
    for key, amounts in edge.by_key.items():
        seconds += factor(key) * costs.crossing_s(key, amounts[..., 0], amounts[..., 1])
    return ClassTable(seconds, edge.rows, edge.columns)


def resharding_by_key_s(
    edge: ReshardingEdge, choices: Sequence[int], costs: CommunicationCosts
) -> dict[CollectiveKey, float]:
    """The seconds of a micro-batch that a crossing takes in a plan, by kind and group size of collectives."""
    pair = edge.pair(choices)
    return {key: float(costs.crossing_s(key, *amounts[pair])) for key, amounts in edge.by_key.items()}


def _variable(block: BlockCandidates, boundaries: Boundaries, times_s: Sequence[float]) -> Variable:
    memories = [candidate.memory for candidate in block.candidates]
    saved, repeated, transient = (
        np.array(each)
        for each in zip(*((m.saved_bytes, m.repeated_bytes, m.transient_bytes) for m in memories), strict=True)
    )
    repeated = np.ceil(boundaries.repeated_share * repeated)
    return Variable(
        _name(block.block),
        times_s,
        state_bytes=boundaries.state[block.block],
        saved_bytes=boundaries.activation_bytes[block.block] + saved + repeated,
        transient_bytes=transient,
    )


def _name(block: int) -> str:
    return f"block {block}"


def _sources_and_uses(
    module: HloModule, graph: Graph, block_candidates: Sequence[BlockCandidates]
) -> tuple[dict[int, BoundaryValue], list[tuple[int, BoundaryValue]]]:
    """Where each value is left (a parameter: where it is first used, as which it is kept), and where it is needed."""
    sources: dict[int, BoundaryValue] = {}
    uses: list[tuple[int, BoundaryValue]] = []
    for block in block_candidates:
        for i, value in enumerate(block.outputs):
            sources[value] = BoundaryValue(block.block, tuple(candidate.outputs[i] for candidate in block.candidates))
    for block in block_candidates:
        for i, value in enumerate(block.inputs):
            origin = graph.origin(value)
            end = BoundaryValue(block.block, tuple(candidate.inputs[i] for candidate in block.candidates))
            if graph.values[origin].op is None:
                sources.setdefault(origin, end)
            uses.append((origin, end))
    # A new value of a donated parameter goes to where the parameter is kept.
    for result, parameter in donation_pairs(module):
        kept = sources.get(graph.parameters[parameter])
        if kept is not None:
            uses.append((graph.origin(graph.results[result]), kept))
    return sources, uses


def _held(module: HloModule, graph: Graph) -> list[int]:
    """The values that a device holds during the whole step: parameters, and results that take no parameter's place."""
    aliased = {result for result, _ in donation_pairs(module)}
    results = (graph.origin(value) for number, value in enumerate(graph.results) if number not in aliased)
    return list(dict.fromkeys((*graph.parameters, *results)))


def _full(graph: Graph, values: Iterable[int]) -> dict[int, float]:
    """The bytes of an element of values."""
    return {value: itemsize(graph.values[value].dtype) for value in values}


@dataclass(frozen=True, slots=True)
class _Kept:
    """The values of a program that have buffers, and how long these are needed."""

    graph: Graph
    buffers: Buffers

    @classmethod
    def of(cls, graph: Graph, sources: Collection[int]) -> "_Kept":
        """The buffers of a program.

        Args:
            graph: The program.
            sources: The values at boundaries of blocks: only of these it is known here what a device holds.
        """
        known = {*sources, *graph.parameters}
        sizes = [math.prod(value.shape) * itemsize(value.dtype) for value in graph.values]

        def must_stay(value: int, read: frozenset[int]) -> bool:
            return value in sources and not known.issuperset(read)

        return cls(graph, find_buffers(graph.ops, sizes, graph.parameters, graph.results, must_stay))

    def after(self, part: range) -> dict[int, float]:
        """The values made in a part of the program that are needed behind it, with the bytes of an element."""
        values = (value for op in self.graph.ops[part.start : part.stop] for value in op.results)
        needed = [value for value in values if self.buffers.last_use[value] >= part.stop]
        elements = (max(math.prod(self.graph.shape(value)), 1) for value in needed)
        return {value: self.buffers.sizes[value] / count for value, count in zip(needed, elements, strict=True)}


def _bytes(
    graph: Graph,
    block_candidates: Sequence[BlockCandidates],
    sources: dict[int, BoundaryValue],
    values: Mapping[int, float],
) -> tuple[np.ndarray, ...]:
    """For each block and candidate, the bytes on a device of those of `values` whose sharding the block decides.

    Args:
        graph: The program.
        block_candidates: The candidates of its blocks.
        sources: The sharding of values.
        values: The bytes that an element takes.
    """
    totals = [np.zeros(len(block.candidates), np.int64) for block in block_candidates]
    for value, size in values.items():
        source = sources.get(value)
        if source is not None:
            shape = graph.shape(value)
            sizes = [math.ceil(math.prod(sharding.local_shape(shape)) * size) for sharding in source.shardings]
            totals[source.block] += np.array(sizes, np.int64)
    return tuple(totals)
