"""Sharding rules for ops that Shardy has none for, or not the right one, and Shardy's passes with them.

Shardy's passes take an op's `sdy.sharding_rule` attribute where it has one. Four kinds of ops are given one, under
their own names, so that no pass ever sees another op in their place:

- elementwise ops that Shardy has no rule for (`chlo.erf` and its like), at which its passes stop;
- reductions that no backend makes over devices (`op_kinds.is_made_over_devices`): Shardy would give each device a part
  of such a result. Their dims are gathered before instead;
- the largest numbers of a row (`chlo.top_k`), and decompositions and solves of matrices, which are calls of libraries:
  they are split along the dims of a batch of matrices, and gathered along all others. JAX's own rules for these calls
  say that they are split along any dim;
- loops, which are split along the dims that no iteration works along (`loop_dims`).

The passes drop all rules in the end; therefore they run through `run_shardy_passes`, which gives the rules each time.
Invariant: nothing but `sdy` attributes and ops, and what the passes themselves do, changes in a module.

Source: Shardy, `shardy/dialect/sdy/transforms/propagation/op_sharding_rule_registry.cc` (`getOrCreateShardingRule`).
"""

from collections.abc import Iterable
from typing import Any

from jaxlib.mlir.dialects import sdy

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.op_kinds import RULELESS_ELEMENTWISE, batch_dims, is_made_over_devices
from alpa_cfp.spmd.shardings.annotations import RULE
from alpa_cfp.spmd.shardings.loop_dims import WHILE, LoopDims, loops_of

_TOP_K = "chlo.top_k"
_POPULATE = "func.func(sdy-populate-op-sharding-rules)"


def run_shardy_passes(module: Any, pipeline: str) -> None:
    """Run a pipeline of Shardy's passes on `module` in place, with the rules that this module gives.

    Raises:
        ir.MLIRError: a pass failed, or the module is not valid.
    """
    give_rules(module)
    mlir.run_passes(module, pipeline)


def give_rules(module: Any) -> None:
    """Give rules to the ops of `module` that this module has one for; where it has loops, Shardy's to all others.

    A loop that has a rule keeps it. The passes drop all rules, so it got this one since (`settle_loops`), and must not
    have been edited after that.
    """
    for loop in give_inner_rules(module):
        if RULE not in loop.attributes:
            loop.attributes[RULE] = LoopDims(loop).rule()


def give_inner_rules(module: Any) -> list[Operation]:
    """As `give_rules`, but for the loops that are in no other loop, which are returned."""
    has_loops = False
    for op in mlir.all_operations(module):
        name = op.name
        if name in RULELESS_ELEMENTWISE:
            op.attributes[RULE] = _elementwise_rule(op)
        elif name == "stablehlo.reduce" and not is_made_over_devices(op):
            op.attributes[RULE] = _whole_reduction_rule(op)
        elif name == _TOP_K:
            op.attributes[RULE] = _batch_rule(op, mlir.tensor_type(op.operands[0]).rank - 1)
        elif name == "stablehlo.custom_call" and (count := batch_dims(op)) is not None:
            op.attributes[RULE] = _batch_rule(op, count)
        has_loops = has_loops or name == WHILE
    if not has_loops:
        return []
    loops = [loop for function in mlir.functions(module).values() for loop in loops_of(mlir.entry_block(function))]
    if any(RULE not in loop.attributes for loop in loops):
        mlir.run_passes(module, _POPULATE)
    return loops


def _elementwise_rule(op: Operation) -> Any:
    """The rule of `op`: a factor for each dim, which all operands and results have alike."""
    shape = mlir.tensor_shape(op.results[0])
    dims = _mapping(range(len(shape)))
    return sdy.OpShardingRuleAttr.get(list(shape), [dims] * len(op.operands), [dims] * len(op.results))


def _whole_reduction_rule(op: Operation) -> Any:
    """The rule of a reduction whose reduced dims have to be whole on each device."""
    shape, reduced = mlir.tensor_shape(op.operands[0]), mlir.int_array(op, "dimensions")
    operand, initial = _mapping(range(len(shape))), _mapping(())
    result = _mapping(dim for dim in range(len(shape)) if dim not in reduced)
    count = len(op.results)
    operands = [operand] * count + [initial] * count
    return sdy.OpShardingRuleAttr.get(list(shape), operands, [result] * count, need_replication_factors=sorted(reduced))


def _batch_rule(op: Operation, count: int) -> Any:
    """The rule of an op that computes independently along its first `count` dims, and for which others are whole."""
    sizes = mlir.tensor_shape(op.operands[0])[:count]
    factors = list(sizes)

    def mapping(value: Value) -> Any:
        own = mlir.tensor_shape(value)
        shared = count if own[:count] == sizes else 0
        first = len(factors)
        factors.extend(own[shared:])
        return _mapping([*range(shared), *range(first, len(factors))])

    operands, results = ([mapping(value) for value in values] for values in (op.operands, op.results))
    return sdy.OpShardingRuleAttr.get(
        factors, operands, results, need_replication_factors=list(range(count, len(factors)))
    )


def _mapping(factors: Iterable[int]) -> Any:
    """A tensor with a dim for each of `factors`."""
    return sdy.TensorMappingAttr.get([sdy.DimMappingAttr.get([factor]) for factor in factors])
