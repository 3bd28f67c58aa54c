"""The search problem of a program: one variable a block, one edge for each two blocks that exchange values.

Takes the units, their candidates' costs and the mesh's rates; gives a `SearchProblem` whose choices are candidates.
A block's own time and memory are its candidates'; an edge costs what bringing the values that go from one block to the
other costs, from where the one leaves them to where the other needs them. Invariant: variables are in block order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from alpa_cfp.analysis.graph import BARRIER, Graph
from alpa_cfp.candidates import Unit
from alpa_cfp.costs import Rates, resharding_matrix
from alpa_cfp.search import Edge, SearchProblem, Variable
from alpa_on_jax.xla_extension.hlo_module import HloModule
from alpa_on_jax.xla_extension.propagation import donation_pairs
from alpa_on_jax.xla_extension.sharding import ArraySharding


@dataclass(frozen=True, slots=True)
class CandidateCost:
    """What a candidate costs.

    Attributes:
        time_s: One run.
        saved_bytes: What a device holds for it beside arguments and results.
    """

    time_s: float
    saved_bytes: int


@dataclass(frozen=True, slots=True)
class _End:
    """Where a value is at a unit's boundary, under each of its candidates."""

    unit: int
    shardings: tuple[ArraySharding, ...]


def make_problem(
    module: HloModule, graph: Graph, units: Sequence[Unit], costs: Sequence[Sequence[CandidateCost]], rates: Rates
) -> SearchProblem:
    """The search problem.

    Args:
        module: The whole module.
        graph: Its graph.
        units: Its units.
        costs: For each unit the costs of its candidates.
        rates: How fast the mesh is.
    """
    sources, uses = _sources_and_uses(module, graph, units)
    variables = [
        Variable(
            _name(unit.block),
            np.array([cost.time_s for cost in costs[unit.block]]),
            state_bytes=_state_bytes(module, graph, unit, sources),
            saved_bytes=np.array([cost.saved_bytes for cost in costs[unit.block]]),
        )
        for unit in units
    ]
    matrices: dict[tuple[int, int], np.ndarray] = {}
    for value, end in uses:
        source = sources.get(value)
        if source is None or source.unit == end.unit:
            continue
        cost = resharding_matrix(
            graph.shape(value), _itemsize(graph.values[value].dtype), source.shardings, end.shardings, rates
        )
        pair = (source.unit, end.unit)
        if source.unit > end.unit:
            pair, cost = (end.unit, source.unit), cost.T
        matrices[pair] = matrices.get(pair, 0.0) + cost
    edges = [Edge(_name(a), _name(b), matrix) for (a, b), matrix in sorted(matrices.items()) if matrix.any()]
    return SearchProblem(tuple(variables), tuple(edges))


def _name(block: int) -> str:
    return f"block {block}"


def _sources_and_uses(
    module: HloModule, graph: Graph, units: Sequence[Unit]
) -> tuple[dict[int, _End], list[tuple[int, _End]]]:
    """Where each value is left (a parameter: where it is first used, as which it is kept), and where it is needed."""
    sources: dict[int, _End] = {}
    uses: list[tuple[int, _End]] = []
    for unit in units:
        for i, value in enumerate(unit.outputs):
            sources[value] = _End(unit.block, tuple(candidate.outputs[i] for candidate in unit.candidates))
    for unit in units:
        for i, value in enumerate(unit.inputs):
            origin = _origin(graph, value)
            end = _End(unit.block, tuple(candidate.inputs[i] for candidate in unit.candidates))
            if graph.values[origin].op is None:
                sources.setdefault(origin, end)
            uses.append((origin, end))
    # A new value of a donated parameter goes to where the parameter is kept.
    for result, parameter in donation_pairs(module):
        kept = sources.get(graph.parameters[parameter])
        if kept is not None:
            uses.append((_origin(graph, graph.results[result]), kept))
    return sources, uses


def _origin(graph: Graph, value: int) -> int:
    """`value` before the barriers that it came through."""
    producer = graph.producer(value)
    while producer is not None and producer.name == BARRIER:
        value = producer.operands[producer.results.index(value)]
        producer = graph.producer(value)
    return value


def _state_bytes(module: HloModule, graph: Graph, unit: Unit, sources: dict[int, _End]) -> np.ndarray:
    """The bytes that a device keeps of the donated parameters that this unit uses first, for each candidate."""
    total = np.zeros(len(unit.candidates), np.int64)
    for parameter, donated in enumerate(module.donated):
        value = graph.parameters[parameter]
        kept = sources.get(value)
        if donated and kept is not None and kept.unit == unit.block:
            itemsize = _itemsize(graph.values[value].dtype)
            sizes = [int(np.prod(s.local_shape(graph.shape(value)), dtype=np.int64)) * itemsize for s in kept.shardings]
            total += np.array(sizes, np.int64)
    return total


def _itemsize(dtype: str) -> int:
    """Bytes of an element of an MLIR type; a sub-byte type takes one."""
    bits = int("".join(filter(str.isdigit, dtype.removeprefix("complex").split("E")[0])) or 8)
    return max(1, bits // 8) * (2 if dtype.startswith("complex") else 1)
