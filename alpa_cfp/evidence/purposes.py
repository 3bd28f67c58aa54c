"""What the collectives of a block's program are for: gradients of weights, weights, or something else.

Takes a partitioned program and which of its parameters and results are weights; gives for each collective how much of
it is gradients, and whether it gathers weights. A sum is a gradient's if it goes to results of weights and nowhere
else: those of a batch norm go to activations, too. Invariant: what cannot be told is neither.
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
# Several small arrays go in one collective: they are put behind each other, and taken apart again. What is updated in
# parts is gathered.
_PACKING = frozenset({"stablehlo.concatenate", "stablehlo.slice", "stablehlo.dynamic_slice", _GATHER})


@dataclass(frozen=True, slots=True)
class Share:
    """What of a collective is of weights.

    Attributes:
        gradient: The part of its bytes that is gradients of weights, from 0 to 1.
        is_weight: Whether it brings parts of weights together.
    """

    gradient: float = 0.0
    is_weight: bool = False

    @property
    def purpose(self) -> Purpose | None:
        """The purpose in one word, of most of it."""
        if self.gradient > 0.5:
            return "gradient" if self.gradient == 1 else "mostly gradient"
        return "weight" if self.is_weight else None


def share_of(op: mlir.Operation, weights: Set[mlir.Value], results: Sequence[bool]) -> Share:
    """What of a collective is of weights.

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
    """Whether a value goes, element by element, to results of weights and to nothing larger than itself.

    What only becomes less, as the norm of a gradient does, is not looked at.
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
                is_kept = user.name in _PACKING or not any(larger)
                waiting += user.results if is_kept else ()
    return reached


def _comes_from(value: mlir.Value, weights: Set[mlir.Value]) -> bool:
    """Whether a value is weights, laid out in some way or put behind each other."""
    waiting = [value]
    while waiting:
        current = waiting.pop()
        op = mlir.defining_op(current)
        if op is not None and (op.name in _PACKING or _only_lays_out(op)):
            waiting += op.operands
        elif op is not None or current not in weights:
            return False
    return True


def _only_lays_out(op: mlir.Operation) -> bool:
    return len(op.operands) == 1 and _elements(op.operands[0]) == _elements(op.results[0])


def _elements(value: mlir.Value) -> int:
    return math.prod(mlir.tensor_shape(value))
