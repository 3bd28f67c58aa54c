"""Classifies the collectives of a block's program: they carry gradients of weights, weights, or something else.

Takes collectives of a partitioned program, and which of its parameters and results are weights. Gives for each
collective the fraction that is gradients, and whether it gathers weights. A sum is a gradient if it reaches results
that are weights, and nothing else: the sums of a batch norm also reach activations. Invariant: a collective that cannot
be classified is neither.
"""

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from alpa_cfp.plan.plan_report import Purpose
from alpa_cfp.spmd.ir import mlir

_SUMS = frozenset({"stablehlo.all_reduce", "stablehlo.reduce_scatter"})
_GATHER = "stablehlo.all_gather"
_CONTRACTIONS = frozenset({"stablehlo.dot_general", "stablehlo.convolution"})
# Several small arrays share one collective: they are concatenated before it and sliced apart after it. Weights that are
# updated in parts are gathered.
_PACKING = frozenset({"stablehlo.concatenate", "stablehlo.slice", "stablehlo.dynamic_slice", _GATHER})


@dataclass(frozen=True, slots=True)
class Share:
    """The share of weights and their gradients in a collective.

    Attributes:
        gradient: The fraction of its bytes that is gradients of weights, from 0 to 1.
        is_weight: Whether it gathers weights.
    """

    gradient: float = 0.0
    is_weight: bool = False

    @property
    def purpose(self) -> Purpose | None:
        """The purpose of most of it."""
        if self.gradient > 0.5:
            return "gradient" if self.gradient == 1 else "mostly gradient"
        return "weight" if self.is_weight else None


def share_of(op: mlir.Operation, weights: Set[mlir.Value], results: Sequence[bool]) -> Share:
    """Finds the share of weights and their gradients in a collective.

    Args:
        op: The collective.
        weights: The program's parameters that are weights.
        results: For each result of the program whether it has the shape of a weight.
    """
    if op.name in _SUMS:
        sizes = [_elements(value) for value in op.operands]
        of = [_leads_to(value, results) for value in op.results]
        return Share(sum(size for size, own in zip(sizes, of, strict=True) if own) / max(sum(sizes), 1))
    if op.name == _GATHER:
        is_weight = all(_comes_from(value, weights) for value in op.operands)
        return Share(is_weight=is_weight or all(_leads_to(value, results) for value in op.results))
    return Share()


def _leads_to(value: mlir.Value, results: Sequence[bool]) -> bool:
    """Whether a value reaches results that are weights, element by element, and nothing larger than itself.

    Users with smaller results, such as the norm of a gradient, are not followed.
    """
    waiting, seen, reached = [value], set[Any](), False
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for user in mlir.users(current):
            if user.name == "func.return":
                if not all(results[i] for i, operand in enumerate(user.operands) if operand == current):
                    return False
                reached = True
            elif user.name in _CONTRACTIONS:
                return False
            else:
                larger = [_elements(result) - _elements(current) for result in user.results]
                if user.name not in _PACKING and any(each > 0 for each in larger):
                    return False
                is_followed = user.name in _PACKING or not any(larger)
                waiting += user.results if is_followed else ()
    return reached


def _comes_from(value: mlir.Value, weights: Set[mlir.Value]) -> bool:
    """Whether a value consists of weights, maybe concatenated or in another layout."""
    waiting = [value]
    while waiting:
        current = waiting.pop()
        op = mlir.defining_op(current)
        if op is not None and (op.name in _PACKING or _changes_only_layout(op)):
            waiting += op.operands
        elif op is not None or current not in weights:
            return False
    return True


def _changes_only_layout(op: mlir.Operation) -> bool:
    return len(op.operands) == 1 and _elements(op.operands[0]) == _elements(op.results[0])


def _elements(value: mlir.Value) -> int:
    return math.prod(mlir.tensor_shape(value))
