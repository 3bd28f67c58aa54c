"""An order of ops that is the same for parts of a program that are the same.

Takes a `Graph` and some of its ops; gives them in an order in which each comes after those that make its operands.
Program order would do, if optimizers did not update parameters in the order of their names: "layer_10" comes before
"layer_9" there, and a block that updates parameters of two layers has its ops in another order for these two alone. So
what no contraction is computed from (updates, metrics) comes right behind the last op of those that it is computed from
and that lead to a contraction, whose order is that of the layers. Two passes over the graph.
"""

from collections.abc import Iterable

from alpa_cfp.analysis.graph import Graph

_PLACED = ("stablehlo.dot_general", "stablehlo.convolution", "stablehlo.gather", "stablehlo.scatter", "stablehlo.while")


class Order:
    """The order of a graph's ops."""

    def __init__(self, graph: Graph):
        leads = _lead_to_contractions(graph)
        # For each op the index of the op that it comes behind, its own where it keeps its place.
        behind: list[int] = []
        for op in graph.ops:
            if leads[op.index]:
                behind.append(op.index)
                continue
            producers = (graph.values[operand].op for operand in op.operands)
            behind.append(max((behind[producer] for producer in producers if producer is not None), default=-1))
        # What is computed from parameters alone comes right before it is used.
        for op in reversed(graph.ops):
            if behind[op.index] < 0:
                users = (behind[user] for result in op.results for user in graph.values[result].users)
                behind[op.index] = min(users, default=-1)
        self._behind = behind

    def of(self, ops: Iterable[int]) -> list[int]:
        """`ops` in this order."""
        return sorted(ops, key=lambda op: (self._behind[op], op))


def _lead_to_contractions(graph: Graph) -> list[bool]:
    """For each op whether a contraction is computed from it, or it is one."""
    leads = [op.name in _PLACED for op in graph.ops]
    for op in reversed(graph.ops):
        if leads[op.index]:
            for operand in op.operands:
                if (producer := graph.values[operand].op) is not None:
                    leads[producer] = True
    return leads
