"""The ways to partition a loop's block: along the dims that its iterations hand on, or sum over.

Takes a loop, with its backward loop where there is one; gives a factor for each class of dims along which they can be
split (`spmd.shardings.loop_dims`). A factor of the backward loop is that of the forward loop that splits an array of
both in the same dim: a stacked residual, a weight. Invariant: along a factor both loops are split without
communication, but for sums and for what they carry on in other parts.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

from alpa_cfp.analysis.contractions import Side
from alpa_cfp.analysis.graph import Graph, Loop
from alpa_cfp.analysis.rules import FactorKind, Rule


def factors_of_loops(graph: Graph, loops: Sequence[int]) -> list[tuple[Side, int, tuple[tuple[int, int], ...]]]:
    """The factors of a loop's block.

    Args:
        graph: The graph around the loops.
        loops: The `while` op, and that of its backward loop, if there is one.

    Returns:
        For each factor its side, the most parts that it has, and its places (as of `BlockFactor`).
    """
    rules = {op: rule for op in loops if (rule := graph.ops[op].rule) is not None}
    if loops[0] not in rules:
        return []
    forward = rules[loops[0]]
    on_weights = _factors_on_weights(graph, loops[0], forward)
    at = _dims_of_factors(graph, loops[0], forward)
    found = []
    for factor in sorted({factor for factors in at.values() for factor in factors}):
        places = {(loops[0], factor)}
        for op in loops[1:]:
            of_loop = _dims_of_factors(graph, op, rules[op]) if op in rules else {}
            places |= {(op, own) for dim in at if factor in at[dim] for own in of_loop.get(dim, ())}
        parts = math.gcd(*(rules[op].sizes[own] for op, own in places))
        found.append((Side.RIGHT if factor in on_weights else Side.LEFT, parts, tuple(sorted(places))))
    return found


def _dims_of_factors(graph: Graph, op: int, rule: Rule) -> dict[tuple[int, int], set[int]]:
    """For each dim of an array that a loop takes or gives the factors along which it is split with others."""
    loop, found = graph.ops[op], defaultdict[tuple[int, int], set[int]](set)
    for values, mappings in ((loop.operands, rule.operands), (loop.results, rule.results)):
        for value, dims in zip(values, mappings, strict=False):  # what a loop captures has no dims in its rule
            for dim, factors in enumerate(dims):
                found[value, dim].update(
                    each for each in factors if rule.kinds[each] is FactorKind.PLAIN and rule.sizes[each] > 1
                )
    return found


def _factors_on_weights(graph: Graph, op: int, rule: Rule) -> set[int]:
    """The factors of arrays that each iteration of a loop uses whole, and none changes."""
    loop: Loop = next(each for each in graph.loops if each.op == op)
    constant = (
        position
        for position, (parameter, result) in enumerate(zip(loop.body.parameters, loop.body.results, strict=False))
        if parameter == result
        and not any(loop.body.ops[user].name == "stablehlo.dynamic_slice" for user in loop.body.values[parameter].users)
    )
    return {factor for position in constant for factors in rule.operands[position] for factor in factors}
