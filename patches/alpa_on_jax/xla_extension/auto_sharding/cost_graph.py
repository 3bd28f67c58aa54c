"""The ILP as a graph of costs: nodes with a cost for each strategy, edges with one for each pair of strategies.

Takes the nodes of `strategies`, merges those that follow others into what they follow, and gives a `CostGraph`. This is
`CostGraph` of tensorflow-alpa's auto_sharding_strategy.h. Invariant: for each choice of strategies for the nodes that
remain, the costs of the graph are those of the program with each merged node at the strategy that `reindexing` names.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from alpa_on_jax.xla_extension.auto_sharding.strategies import Node

# The edges of one node: to each neighbour, costs [own strategies, neighbour's strategies].
Adjacency = dict[int, np.ndarray]


@dataclass(frozen=True, slots=True)
class CostGraph:
    """Costs after merging.

    Attributes:
        follow: For each node the node it is merged into, or -1.
        reindexing: For each merged node, by strategy of the node it is merged into, its own strategy; else None.
        extra_cost: For each node what was on edges between it and nodes merged into it, [strategies].
        edges: Costs [strategies of i, strategies of j] for pairs i < j of nodes that remain.
    """

    follow: tuple[int, ...]
    reindexing: tuple[np.ndarray | None, ...]
    extra_cost: tuple[np.ndarray, ...]
    edges: dict[tuple[int, int], np.ndarray]

    def own_strategy(self, node: int, choice: int) -> int:
        """The strategy of `node` where the node it is merged into (or itself) has `choice`."""
        reindexing = self.reindexing[node]
        return choice if reindexing is None else int(reindexing[choice])


def build_cost_graph(nodes: Sequence[Node], sums_of_dots: Sequence[tuple[Node, Node]]) -> CostGraph:
    """The cost graph of `nodes`.

    Args:
        nodes: The values of the program.
        sums_of_dots: Pairs of dots whose results are added: their all-reduces become one.
    """
    merging = _Merging(nodes)
    for node in nodes:
        for source, cost in node.edges:
            merging.add(source.index, node.index, cost)
    for first, second in sums_of_dots:
        if len(first.strategies) == len(second.strategies):
            # The all-reduces of the same strategy are one, so it is paid once.
            merging.add(first.index, second.index, -np.diag(first.communication_cost))
    for node in nodes:
        if node.following is not None:
            merging.merge(node.index, merging.destination(node.following.index))
    return merging.result()


class _Merging:
    def __init__(self, nodes: Sequence[Node]):
        self._lengths = [len(node.strategies) for node in nodes]
        self._adjacency: list[Adjacency] = [{} for _ in nodes]
        self._extra = [np.zeros(length) for length in self._lengths]
        self._into: list[int] = [-1] * len(nodes)
        self._reindexing: list[np.ndarray | None] = [None] * len(nodes)

    def add(self, i: int, j: int, cost: np.ndarray) -> None:
        """Add `cost` [strategies of i, strategies of j] to the edge between i and j."""
        known = self._adjacency[i].get(j)
        if known is not None:
            cost = known + cost
        self._adjacency[i][j] = cost
        self._adjacency[j][i] = cost.T

    def destination(self, node: int) -> int:
        """The node that `node` is merged into at the end of the chain; the chain is shortened."""
        into = self._into[node]
        if into < 0:
            return node
        last = self.destination(into)
        if last != into:
            own, next_ = self._reindexing[node], self._reindexing[into]
            assert own is not None
            assert next_ is not None
            self._reindexing[node] = own[next_]
            self._into[node] = last
        return last

    def merge(self, source: int, target: int) -> None:
        """Merge node `source` into `target`, which it follows."""
        between = self._adjacency[target].pop(source)
        del self._adjacency[source][target]
        length = self._lengths[target]
        if length == self._lengths[source]:
            reindexing = np.arange(length)
        else:
            # The cheapest strategy for each one of the target; among equals the last, which is the replicated one.
            reindexing = between.shape[1] - 1 - np.argmin(between[:, ::-1], axis=1)
        self._extra[target] = self._extra[target] + between[np.arange(length), reindexing]
        for neighbour, cost in self._adjacency[source].items():
            del self._adjacency[neighbour][source]
            self.add(target, neighbour, cost[reindexing])
        self._adjacency[source] = {}
        self._into[source] = target
        self._reindexing[source] = reindexing

    def result(self) -> CostGraph:
        follow = tuple(self.destination(node) if into >= 0 else -1 for node, into in enumerate(self._into))
        edges = {
            (i, j): cost
            for i, neighbours in enumerate(self._adjacency)
            for j, cost in sorted(neighbours.items())
            if i < j
        }
        return CostGraph(follow, tuple(self._reindexing), tuple(self._extra), edges)
