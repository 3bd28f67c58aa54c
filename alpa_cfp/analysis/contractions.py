"""The contractions of a graph and the sides of their factors.

Takes a `Graph`; gives a `Contraction` for every dot and convolution and for every lookup of rows in a parameter (an
embedding). Each of its factors is on a *side*: batch (in both operands and the result), left or right (in one operand
and the result) or reduction (in both operands only). Spatial dims of convolutions are on none, since partitioning them
exchanges halos.
"""

import math
import re
from dataclasses import dataclass
from enum import Enum

from alpa_cfp.analysis.graph import Graph, Op
from alpa_cfp.analysis.rules import FactorKind, Rule
from alpa_cfp.analysis.structure import Structure, is_parameter

_CONVOLUTION_DIMS = re.compile(r"conv<\[([^]]*)\]x\[([^]]*)\]->\[([^]]*)\]>")


class Side(Enum):
    """The tensors of a contraction in which a factor occurs."""

    BATCH = "batch"
    LEFT = "left"
    RIGHT = "right"
    REDUCTION = "reduction"

    @property
    def swapped(self) -> "Side":
        """The side after the operands have changed places."""
        return {Side.LEFT: Side.RIGHT, Side.RIGHT: Side.LEFT}.get(self, self)


# Sides along which each device computes gradients of its own samples.
SAMPLES = (Side.LEFT, Side.BATCH)


@dataclass(frozen=True, slots=True)
class Contraction:
    """A dot, a convolution or a gather of rows.

    Attributes:
        op: The op's index.
        operands: The ids of the left and the right operand (of a gather: the table, the indices).
        result: The id of its result.
        sides: The side of each factor that may be partitioned; factors of size 1 are left out.
        dims: For the left operand, the right operand and the result the factor of each dim; None where it is not in
            `sides`.
        volume: The number of its multiplications.
    """

    op: int
    operands: tuple[int, int]
    result: int
    sides: dict[int, Side]
    dims: tuple[tuple[int | None, ...], tuple[int | None, ...], tuple[int | None, ...]]
    volume: int

    def factors(self, side: Side) -> tuple[int, ...]:
        """The factors on one side, ascending."""
        return tuple(sorted(factor for factor, its_side in self.sides.items() if its_side is side))

    @property
    def required(self) -> tuple[Side, ...]:
        """The sides on which a ParallelBlock keeps at least one factor: batch if there is one, else left and right."""
        present = set(self.sides.values())
        if Side.BATCH in present:
            return (Side.BATCH,)
        return tuple(side for side in (Side.LEFT, Side.RIGHT) if side in present)


def find_contractions(graph: Graph, structure: Structure) -> tuple[Contraction, ...]:
    """Returns the contractions of `graph` and its embedding lookups, in program order."""
    found = (_contraction(graph, structure, op) for op in graph.ops)
    return tuple(contraction for contraction in found if contraction is not None)


def _contraction(graph: Graph, structure: Structure, op: Op) -> Contraction | None:
    if op.rule is None or graph.constant_derived[op.index]:
        return None
    if op.name == "stablehlo.dot_general":
        return _of_rule(op, op.rule, frozenset(), op.rule.volume)
    if op.name == "stablehlo.convolution":
        kernel, window = graph.shape(op.operands[1]), _CONVOLUTION_DIMS.search(op.attributes)
        if window is None:
            return None
        labels = [[label.strip() for label in group.split(",")] for group in window.groups()]
        volume = math.prod(graph.shape(op.results[0])) * math.prod(kernel) // max(kernel[labels[1].index("o")], 1)
        return _of_rule(op, op.rule, _spatial_factors(op.rule, labels), volume)
    if op.name == "stablehlo.gather" and is_parameter(graph, structure, op.operands[0]):
        contraction = _of_rule(op, op.rule, frozenset(), op.rule.volume)
        return contraction if contraction.factors(Side.LEFT) and contraction.factors(Side.RIGHT) else None
    return None


def _spatial_factors(rule: Rule, labels: list[list[str]]) -> frozenset[int]:
    tensors = (*rule.operands, *rule.results)
    return frozenset(
        factor
        for names, tensor in zip(labels, tensors, strict=True)
        for label, factors in zip(names, tensor, strict=True)
        if label.isdigit()
        for factor in factors
    )


def _of_rule(op: Op, rule: Rule, excluded: frozenset[int], volume: int) -> Contraction:
    tensors = (rule.operands[0], rule.operands[1], rule.results[0])
    present = [frozenset(factor for factors in tensor for factor in factors) for tensor in tensors]
    sides: dict[int, Side] = {}
    for factor, (size, kind) in enumerate(zip(rule.sizes, rule.kinds, strict=True)):
        if size == 1 or factor in excluded:
            continue
        in_left, in_right, in_result = (factor in factors for factors in present)
        if kind is FactorKind.REDUCTION:
            sides[factor] = Side.REDUCTION
        elif kind is FactorKind.PLAIN and in_result and (in_left or in_right):
            sides[factor] = Side.BATCH if in_left and in_right else Side.LEFT if in_left else Side.RIGHT
    left, right, result = (
        tuple(major if (major := rule.major_factor(factors)) in sides else None for factors in tensor)
        for tensor in tensors
    )
    return Contraction(op.index, (op.operands[0], op.operands[1]), op.results[0], sides, (left, right, result), volume)
