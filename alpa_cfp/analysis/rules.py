"""Sharding rules as Python values: the dims of an op's operands and results that are partitioned together.

Takes Shardy's `#sdy.op_sharding_rule` attributes; gives `Rule`s that outlive the MLIR context. A *factor* is one
dimension of an op's iteration space; a dim is made of one or more factors, major to minor. Invariant: the product of a
dim's factor sizes divides or equals the dim's size, as in Shardy.
"""

import enum
import math
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir.dialects import sdy

RULE_ATTRIBUTE = "sdy.sharding_rule"
# The factors of operands or results: for each of them, for each dim, factor indices from major to minor.
Mappings = tuple[tuple[tuple[int, ...], ...], ...]


class FactorKind(enum.IntEnum):
    """The effect of partitioning an op along a factor."""

    PLAIN = 0
    """Every device computes its part of the result without communication."""
    REDUCTION = 1
    """Every device computes a partial sum of the result."""
    NEED_REPLICATION = 2
    """The operands along the factor must be gathered first."""
    PERMUTATION = 3
    """Parts move between devices."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The sharding rule of an op.

    Attributes:
        sizes: The size of each factor.
        kinds: The kind of each factor.
        operands: For each operand, for each dim, its factors, major to minor.
        results: The same for each result.
    """

    sizes: tuple[int, ...]
    kinds: tuple[FactorKind, ...]
    operands: Mappings
    results: Mappings

    @property
    def volume(self) -> int:
        """The number of points of the iteration space."""
        return math.prod(self.sizes)

    def major_factor(self, dim_factors: tuple[int, ...]) -> int | None:
        """The factor along which a dim of these factors is split: the first one larger than 1; None if there is none.

        The minor factors could be split only after that one is split entirely.
        """
        return next((factor for factor in dim_factors if self.sizes[factor] > 1), None)


def read_rule(attribute: Any) -> Rule:
    """The `Rule` of an `#sdy.op_sharding_rule` attribute (`sdy.OpShardingRuleAttr`'s Python interface)."""
    rule = sdy.OpShardingRuleAttr(attribute)
    sizes = tuple(rule.factor_sizes)
    kinds = [FactorKind.PLAIN] * len(sizes)
    for factors, kind in (
        (rule.blocked_propagation_factors, FactorKind.NEED_REPLICATION),
        (rule.permutation_factors, FactorKind.PERMUTATION),
        (rule.need_replication_factors, FactorKind.NEED_REPLICATION),
        (rule.reduction_factors, FactorKind.REDUCTION),
    ):
        for factor in factors:
            kinds[factor] = kind
    return Rule(sizes, tuple(kinds), _mappings(rule.operand_mappings), _mappings(rule.result_mappings))


def _mappings(attributes: Any) -> Mappings:
    return tuple(
        tuple(tuple(sdy.DimMappingAttr(dim).factor_indices) for dim in sdy.TensorMappingAttr(tensor).dim_mappings)
        for tensor in attributes
    )
