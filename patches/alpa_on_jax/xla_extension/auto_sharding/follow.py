"""Strategies of ops that follow an operand: elementwise ops, data movement, reductions, sorts.

Their value has a strategy for each strategy of the operand that is followed; the other operands are brought to the
place that goes with it.
"""

from collections.abc import Callable

from alpa_on_jax.xla_extension.auto_sharding import specs
from alpa_on_jax.xla_extension.auto_sharding.graph import Instruction
from alpa_on_jax.xla_extension.auto_sharding.opcodes import ELEMENTWISE
from alpa_on_jax.xla_extension.auto_sharding.specs import Spec, replicated
from alpa_on_jax.xla_extension.auto_sharding.strategies import (
    Choices,
    Node,
    Strategy,
    StrategyBuilder,
    spec_name,
    strategies_of,
)

Rule = Callable[[Spec], Spec | None]


def follow_operand(
    builder: StrategyBuilder, instruction: Instruction, index: int, rule: Rule, *, merge: bool = True
) -> Choices:
    """A strategy for each one of operand `index` whose spec `rule` takes through the op."""
    source = builder.nodes[instruction.operands[index]]
    strategies, follows = [], []
    for i, source_spec in enumerate(source.specs):
        spec = rule(source_spec)
        if spec is not None:
            operands = tuple(
                source_spec if k == index else _along(operand, spec) for k, operand in enumerate(instruction.operands)
            )
            strategies.append(Strategy(spec_name(builder.mesh, spec), spec, operands))
            follows.append(i)
    return Choices(tuple(strategies), source, tuple(follows), merge)


def _along(operand: Instruction, spec: Spec) -> Spec:
    """The spec that an operand must have that is not followed: that of the result."""
    return spec if operand.rank == len(spec) else replicated(operand.rank)


@strategies_of(*ELEMENTWISE)
def _elementwise(builder: StrategyBuilder, instruction: Instruction) -> Choices:
    index, tie = builder.choose_operand(instruction)
    # Where an iota and a parameter could both be followed (embeddings, masks), the ILP chooses.
    chooses = tie and (instruction.opcode in ("compare", "and") or len(instruction.operands) == 3)

    def same(spec: Spec) -> Spec:
        return spec if len(spec) == instruction.rank else replicated(instruction.rank)

    return follow_operand(builder, instruction, index, same, merge=not chooses)


@strategies_of("transpose")
def _transpose(builder: StrategyBuilder, instruction: Instruction) -> Choices:
    return follow_operand(builder, instruction, 0, lambda spec: specs.transpose(spec, instruction.dims))


@strategies_of("reverse", "marker")
def _same(builder: StrategyBuilder, instruction: Instruction) -> Choices:
    return follow_operand(builder, instruction, 0, lambda spec: spec)


@strategies_of("result")
def _further_result(builder: StrategyBuilder, instruction: Instruction) -> Choices:
    (first,) = instruction.operands
    if first.shape == instruction.shape:
        return follow_operand(builder, instruction, 0, lambda spec: spec)
    return Choices((Strategy("R", replicated(instruction.rank)),))


@strategies_of("slice", "pad", "concatenate", "dynamic_slice", "dynamic_update_slice")
def _dimwise(builder: StrategyBuilder, instruction: Instruction) -> Choices:
    index, _ = builder.choose_operand(instruction)
    before = instruction.operands[index].shape
    if len(before) != instruction.rank:  # an index of a dynamic slice is never worth following
        index, before = 0, instruction.operands[0].shape
    changed = follow_operand(
        builder, instruction, index, lambda spec: specs.keep_unchanged_dims(spec, before, instruction.shape)
    )
    return _or_replicated(builder, instruction, changed)


@strategies_of("reduce_window", "select_and_scatter")
def _windowed(builder: StrategyBuilder, instruction: Instruction) -> Choices:
    arrays = (len(instruction.operands) + 1) // 2  # those behind them are what windows begin with, scalars
    index, _ = builder.choose_operand(instruction, arrays)
    followed = follow_operand(
        builder, instruction, index, lambda spec: specs.keep_window_dims(spec, instruction.window)
    )
    return _or_replicated(builder, instruction, followed)


def _or_replicated(builder: StrategyBuilder, instruction: Instruction, choices: Choices) -> Choices:
    """The operand's strategies may all be such that the op cannot follow: then it is computed as a whole."""
    if choices.strategies:
        return choices
    return Choices((builder.replicated_strategy(instruction, 0.0),))


@strategies_of("reduce")
def _reduce(builder: StrategyBuilder, instruction: Instruction) -> Choices:
    count = len(instruction.operands) // 2
    index, _ = builder.choose_operand(instruction, count)
    operand = instruction.operands[index]
    source: Node = builder.nodes[operand]
    strategies = []
    for source_spec in source.specs:
        if instruction.is_made_whole and any(source_spec[dim] for dim in instruction.dims):
            strategies.append(_gathered_reduction(builder, instruction, operand, source_spec))
            continue
        spec = tuple(code for dim, code in enumerate(source_spec) if dim not in instruction.dims)
        # As in Alpa, a dim that is split along both axes is reduced at the price of axis 0.
        axes = builder.mesh.axis_of_dims(source_spec)
        paid = tuple(axes[dim] for dim in instruction.dims if axes[dim] >= 0)
        reduced = builder.mesh.axes_of_codes(source_spec[dim] for dim in instruction.dims)
        size_bytes = instruction.size_bytes / builder.mesh.num_tiles(spec)
        name = spec_name(builder.mesh, spec)
        if reduced:
            name += f" (allreduce @ {list(paid)})"
        if builder.mesh.is_mixed(source_spec):
            name += " 1d"
        required = tuple(
            source_spec if k < count else replicated(other.rank) for k, other in enumerate(instruction.operands)
        )
        cost = sum(builder.communication.all_reduce(size_bytes, axis) for axis in paid)
        strategies.append(Strategy(name, spec, required, communication_cost=cost, all_reduce_axes=reduced))
    return Choices(tuple(strategies), source, tuple(range(len(strategies))))


def _gathered_reduction(
    builder: StrategyBuilder, instruction: Instruction, operand: Instruction, source_spec: Spec
) -> Strategy:
    """A reduction that no collective makes, of an operand that is gathered before."""
    whole = tuple(replicated(other.rank) for other in instruction.operands)
    cost = builder.communication.resharding(operand.size_bytes, source_spec, replicated(operand.rank))
    spec = replicated(instruction.rank)
    return Strategy(spec_name(builder.mesh, spec), spec, whole, communication_cost=cost)


@strategies_of("sort")
def _sort(builder: StrategyBuilder, instruction: Instruction) -> Choices:
    index, _ = builder.choose_operand(instruction)
    operand = instruction.operands[index]
    source = builder.nodes[operand]
    strategies = []
    for spec in source.specs:
        gathers = any(spec[dim] for dim in instruction.dims)
        whole = replicated(operand.rank)
        cost = builder.communication.resharding(operand.size_bytes, spec, whole) if gathers else 0.0
        required = tuple(spec if k == index or not gathers else whole for k, _ in enumerate(instruction.operands))
        strategies.append(Strategy(spec_name(builder.mesh, spec), spec, required, communication_cost=cost))
    return Choices(tuple(strategies), source, tuple(range(len(strategies))))
