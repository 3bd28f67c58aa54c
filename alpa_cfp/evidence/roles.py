"""Finds the role of each factor of a block: samples, heads, experts, rows or columns of weights.

A factor on the left, right or reduction side of a contraction has one role. A factor on the batch side can be samples,
heads or experts; its dims are traced back through the program to their origins. Invariant: if neither the graph nor the
name of the block decides, the role is "batch", which is shown as "heads or experts".
"""

import re
from collections.abc import Container, Iterable

from alpa_cfp.analysis.blocks import ParallelBlock
from alpa_cfp.analysis.contractions import Side
from alpa_cfp.analysis.graph import Graph, Op
from alpa_cfp.evidence.naming import parameter_of
from alpa_cfp.plan.plan_report import Role

_ROLES: dict[Side, Role] = {Side.LEFT: "samples", Side.RIGHT: "columns", Side.REDUCTION: "rows"}
_CONTRACTIONS = frozenset({"stablehlo.dot_general", "stablehlo.convolution"})
# Origins of a dim: the first dim of an input, which is samples; another dim of an input; columns that a weight makes; a
# dim that the weights have too, as stacked experts do; a dispatch to computed positions; not known.
_SAMPLES, _INPUT, _COLUMNS, _STACK, _SENT, _UNKNOWN = "samples", "input", "columns", "stack", "sent", "unknown"
# Words in the names of blocks, used if the graph does not decide.
_OF_HEADS = re.compile(r"attn|attention|heads", re.IGNORECASE)
_OF_EXPERTS = re.compile(r"expert|moe", re.IGNORECASE)


def roles_of(graph: Graph, block: ParallelBlock, weights: Container[int | None], name: str = "") -> tuple[Role, ...]:
    """The role of each factor of a block.

    Args:
        graph: The graph of the block.
        block: The block.
        weights: Numbers of the parameters that are weights.
        name: The name of the block.
    """
    tracer = _Tracer(graph, weights)
    forward = {entry.op for entry in block.entries if entry.role == "forward"}
    found: list[Role] = []
    for factor in block.factors:
        if factor.side is not Side.BATCH:
            found.append(_ROLES[factor.side])
            continue
        # The side of a factor is that in the first entry.
        op, number = min((place for place in factor.places if place[0] in forward), default=factor.places[0])
        found.append(tracer.role(graph.ops[op], number) or _by_name(name))
    return tuple(found)


class _Tracer:
    """Traces dims back to their origins."""

    def __init__(self, graph: Graph, weights: Container[int | None]):
        self._graph = graph
        self._weights = weights
        self._known: dict[tuple[int, int], frozenset[str]] = {}

    def role(self, op: Op, factor: int) -> Role | None:
        """The role of a factor on the batch side of a contraction; None if the graph does not decide."""
        left, right = (self._from(op, position, factor) for position in (0, 1))
        weighted = [self._is_weight(value) for value in op.operands[:2]]
        if any(weighted):
            other = right if weighted[0] else left
            return "experts" if _SENT in other and not other & {_SAMPLES, _INPUT} and not all(weighted) else None
        if left == right == {_SAMPLES}:
            return "samples"
        # In both operands weights made the dim: attention, which has scores for each head.
        return "heads" if left == right == {_COLUMNS} else None

    def origins(self, value: int, dim: int) -> frozenset[str]:
        """The origins of a dim of a value."""
        # Deep programs have long chains, so there is no recursion, and results are memoized.
        waiting = [(value, dim)]
        while waiting:
            key = waiting[-1]
            if key in self._known:
                waiting.pop()
                continue
            own, before = self._step(*key)
            missing = [each for each in before if each not in self._known]
            if missing:
                waiting += missing
                continue
            self._known[key] = own.union(*(self._known[each] for each in before))
            waiting.pop()
        return self._known[value, dim]

    def _step(self, value: int, dim: int) -> tuple[frozenset[str], list[tuple[int, int]]]:
        """The origins that the op of a value adds to a dim, and the dims of its operands from which it is taken."""
        graph = self._graph
        value = graph.origin(value)
        producer = graph.producer(value)
        if producer is None:
            if graph.values[value].position in self._weights:
                return frozenset(), []
            return frozenset({_INPUT if dim else _SAMPLES}), []
        if graph.constant_derived[producer.index]:
            return frozenset(), []
        if producer.rule is None:
            return frozenset({_UNKNOWN}), []
        factor = producer.rule.major_factor(producer.rule.results[producer.results.index(value)][dim])
        if factor is None:
            return frozenset(), []
        before = self._taken_from(producer, range(len(producer.operands)), factor)
        if producer.name == "stablehlo.gather":
            return frozenset() if self._is_weight(producer.operands[0]) else frozenset({_SENT}), before
        if producer.name not in _CONTRACTIONS:
            return frozenset(), before
        weighted = [self._is_weight(operand) for operand in producer.operands[:2]]
        having = [bool(self._taken_from(producer, [position], factor)) for position in (0, 1)]
        own = frozenset[str]()
        if not any(weighted):
            # One operand holds the positions for the other: a dispatch.
            own = own if all(having) else frozenset({_SENT})
        elif having[weighted.index(True)]:
            own = frozenset({_STACK if all(having) else _COLUMNS})
        of = [position for position in (0, 1) if having[position] and not weighted[position]]
        return own, self._taken_from(producer, of, factor)

    def _from(self, op: Op, position: int, factor: int) -> frozenset[str]:
        return frozenset[str]().union(*(self.origins(*each) for each in self._taken_from(op, [position], factor)))

    def _taken_from(self, op: Op, positions: Iterable[int], factor: int) -> list[tuple[int, int]]:
        assert op.rule is not None
        return [
            (op.operands[position], dim)
            for position in positions
            for dim, factors in enumerate(op.rule.operands[position])
            if op.rule.major_factor(factors) == factor
        ]

    def _is_weight(self, value: int) -> bool:
        return parameter_of(self._graph, value) in self._weights


def _by_name(name: str) -> Role:
    heads, experts = _OF_HEADS.search(name) is not None, _OF_EXPERTS.search(name) is not None
    return "batch" if heads is experts else "heads" if heads else "experts"
