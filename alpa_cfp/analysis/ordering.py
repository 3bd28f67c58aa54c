"""A topological order of ops that is the same for equal parts of a program.

Takes a `Graph` and some of its ops; gives them in that order. Program order does not serve, since optimizers update
parameters in the order of their names: "layer_10" comes before "layer_9" there, so that a block which updates
parameters of these two layers has its ops in another order than the same block of other layers. So an op from which no
contraction is computed (updates, metrics) comes right behind the last op that it is computed from among those from
which a contraction is computed; their order is that of the layers. Two passes over the graph.
"""

from collections.abc import Iterable

from alpa_cfp.analysis.graph import Graph

_CONTRACTIONS = (
    "stablehlo.dot_general",
    "stablehlo.convolution",
    "stablehlo.gather",
    "stablehlo.scatter",
    "stablehlo.while",
)


class Order:
    """The order of a graph's ops."""

    def __init__(self, graph: Graph):
        leads_to_contraction = graph.with_ancestors(op.index for op in graph.ops if op.name in _CONTRACTIONS)
        # For each op the index of the op that it follows; its own where it keeps its position.
        behind: list[int] = []
        for op in graph.ops:
            if leads_to_contraction[op.index]:
                behind.append(op.index)
                continue
            producers = (graph.values[operand].op for operand in op.operands)
            behind.append(max((behind[producer] for producer in producers if producer is not None), default=-1))
        # Ops that are computed from parameters alone come right before their first user.
        for op in reversed(graph.ops):
            if behind[op.index] < 0:
                users = (behind[user] for result in op.results for user in graph.values[result].users)
                behind[op.index] = min(users, default=-1)
        self._behind = behind

    def of(self, ops: Iterable[int]) -> list[int]:
        """Returns `ops` in this order."""
        return sorted(ops, key=lambda op: (self._behind[op], op))
