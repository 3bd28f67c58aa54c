"""Strategies of values that follow nothing: parameters, random numbers, constants, iotas, some others."""

from collections.abc import Iterator

from alpa_on_jax.xla_extension.auto_sharding import specs
from alpa_on_jax.xla_extension.auto_sharding.depths import is_activation
from alpa_on_jax.xla_extension.auto_sharding.filtering import keep_batch_split
from alpa_on_jax.xla_extension.auto_sharding.follow import follow_operand
from alpa_on_jax.xla_extension.auto_sharding.graph import Instruction
from alpa_on_jax.xla_extension.auto_sharding.specs import FIRST, SECOND, Spec, replicated
from alpa_on_jax.xla_extension.auto_sharding.strategies import Choices, Strategy, StrategyBuilder, strategies_of

# What a whole iota costs, in replicated penalties: as good as never, where it can be split.
_REPLICATED_IOTA = 5
_MIXED_PREFERENCE = 0.8
_LOOK_AHEAD = 6


@strategies_of("parameter", "rng")
def _parameter(builder: StrategyBuilder, instruction: Instruction) -> Choices:
    if instruction in builder.given:
        return Choices((_unconstrained(instruction, "given", builder.given[instruction]),))
    split = list(_one_axis(builder, instruction, divisible=True))
    if is_activation(instruction, builder.batch):
        split += _two_axes(builder, instruction, divisible=True)
    penalty = 0.0
    if _is_mixed(builder):
        penalty = _MIXED_PREFERENCE * builder.replicated_penalty
    strategies = [_unconstrained(instruction, name, spec, penalty) for name, spec in split]
    if _is_mixed(builder):
        strategies += [
            _unconstrained(instruction, name, spec) for name, spec in _all_devices(builder, instruction, divisible=True)
        ]
    if builder.options.allow_replicated_parameters or not strategies:
        strategies.append(_unconstrained(instruction, "R", replicated(instruction.rank), builder.replicated_penalty))
    return Choices(keep_batch_split(builder, instruction, tuple(strategies)))


@strategies_of("constant")
def _constant(builder: StrategyBuilder, instruction: Instruction) -> Choices:
    if instruction.is_splat and instruction.rank and instruction.is_output:
        return _filled(builder, instruction)
    return Choices((builder.replicated_strategy(instruction, 0.0),))


@strategies_of("broadcast_in_dim")
def _broadcast(builder: StrategyBuilder, instruction: Instruction) -> Choices:
    (operand,) = instruction.operands
    if operand.rank == 0 and (instruction.is_output or operand.opcode != "constant"):
        return _filled(builder, instruction)
    return follow_operand(
        builder,
        instruction,
        0,
        lambda spec: specs.broadcast(spec, operand.shape, instruction.shape, instruction.dims),
    )


def _filled(builder: StrategyBuilder, instruction: Instruction) -> Choices:
    """A value that is one scalar everywhere may be split in any way."""
    split = _one_axis(builder, instruction, divisible=False)
    strategies = [_unconstrained(instruction, name, spec) for name, spec in split]
    strategies.append(_unconstrained(instruction, "R", replicated(instruction.rank), builder.replicated_penalty))
    return Choices(tuple(strategies))


@strategies_of("iota")
def _iota(builder: StrategyBuilder, instruction: Instruction) -> Choices:
    split = list(_two_axes(builder, instruction, divisible=False))
    if _is_mixed(builder):
        split += _all_devices(builder, instruction, divisible=False)
    strategies = [_unconstrained(instruction, name, spec) for name, spec in split]
    if not strategies or _is_broadcast_soon(instruction):
        penalty = _REPLICATED_IOTA * builder.replicated_penalty
        strategies.append(_unconstrained(instruction, "R", replicated(instruction.rank), penalty))
    return Choices(tuple(strategies))


@strategies_of("rng_get_and_update_state")
def _state(builder: StrategyBuilder, instruction: Instruction) -> Choices:
    return Choices((builder.replicated_strategy(instruction, 0.0),))


@strategies_of("reshape")
def _reshape(builder: StrategyBuilder, instruction: Instruction) -> Choices:
    (operand,) = instruction.operands
    mesh = builder.mesh
    used_once = len(instruction.users) + instruction.is_output == 1
    follows = (used_once and not _switches_batch_dim(instruction)) or (
        mesh.is_2d and not builder.options.allow_mixed_mesh_shape
    )
    if follows:
        choices = follow_operand(
            builder, instruction, 0, lambda spec: specs.reshape(mesh, spec, operand.shape, instruction.shape)
        )
        if choices.strategies:
            return choices
    split = list(_one_axis(builder, instruction, divisible=False))
    if _is_mixed(builder):
        split += _all_devices(builder, instruction, divisible=False)
        split += _batch_and_another(builder, instruction)
    strategies = []
    for name, spec in split:
        source = specs.reshape(mesh, spec, instruction.shape, operand.shape)
        if source is not None:
            strategies.append(Strategy(name, spec, (source,)))
    strategies.append(builder.replicated_strategy(instruction, builder.replicated_penalty))
    return Choices(tuple(strategies))


def _is_mixed(builder: StrategyBuilder) -> bool:
    return builder.options.allow_mixed_mesh_shape and builder.mesh.is_2d


def _unconstrained(instruction: Instruction, name: str, spec: Spec, penalty: float = 0.0) -> Strategy:
    return Strategy(name, spec, tuple(None for _ in instruction.operands), compute_cost=penalty)


def _fits(size: int, parts: int, divisible: bool) -> bool:
    return size >= parts and (not divisible or size % parts == 0)


def _one_axis(builder: StrategyBuilder, instruction: Instruction, *, divisible: bool) -> Iterator[tuple[str, Spec]]:
    """One dim split along one axis."""
    mesh = builder.mesh
    for dim, size in enumerate(instruction.shape):
        for axis in mesh.axes:
            if _fits(size, mesh.shape[axis], divisible):
                yield f"S{dim} @ {axis}", mesh.tile(instruction.rank, (dim,), (axis,))


def _two_axes(builder: StrategyBuilder, instruction: Instruction, *, divisible: bool) -> Iterator[tuple[str, Spec]]:
    """One dim split along axis 0 and another one along axis 1 (which may have one device)."""
    mesh = builder.mesh
    for first, size in enumerate(instruction.shape):
        for second, other in enumerate(instruction.shape):
            if (
                first != second
                and _fits(size, mesh.sizes[FIRST], divisible)
                and _fits(other, mesh.sizes[SECOND], divisible)
            ):
                yield f"S{{{first},{second}}} @ {{0,1}}", mesh.tile(instruction.rank, (first, second), (0, 1))


def _all_devices(builder: StrategyBuilder, instruction: Instruction, *, divisible: bool) -> Iterator[tuple[str, Spec]]:
    """One dim split along both axes of a 2D mesh."""
    mesh = builder.mesh
    for dim, size in enumerate(instruction.shape):
        if _fits(size, mesh.num_devices, divisible):
            yield f"S{dim} @ 0 1d", mesh.tile_1d(instruction.rank, dim)


def _batch_and_another(builder: StrategyBuilder, instruction: Instruction) -> Iterator[tuple[str, Spec]]:
    """The batch dim split along axis 0 and another one along axis 1."""
    batch_dim = builder.batch.get(instruction)
    if batch_dim is None:
        return
    mesh = builder.mesh
    for dim, size in enumerate(instruction.shape):
        if dim != batch_dim and size >= mesh.shape[1]:
            yield f"S{batch_dim}{dim} @ {{0,1}}", mesh.tile(instruction.rank, (batch_dim, dim), (0, 1))


def _switches_batch_dim(instruction: Instruction) -> bool:
    """Whether a reshape stands between a batched dot and a transpose: there the split may want to change dims."""
    (operand,) = instruction.operands
    return (
        len(instruction.users) == 1
        and instruction.users[0].opcode == "transpose"
        and operand.dot is not None
        and bool(operand.dot.lhs_batch)
    )


def _is_broadcast_soon(instruction: Instruction) -> bool:
    """Whether the chain of first users meets a broadcast within a few steps; reshapes do not count."""
    steps = 0
    while steps < _LOOK_AHEAD and instruction.users:
        instruction = instruction.users[0]
        if instruction.opcode == "broadcast_in_dim":
            return True
        steps += instruction.opcode not in ("reshape", "marker")
    return False
