"""Keep the strategies that split the batch dim along the axis on which alpa forces it (`FilterStrategy` in Alpa)."""

from alpa_on_jax import errors
from alpa_on_jax.xla_extension.auto_sharding.graph import Instruction
from alpa_on_jax.xla_extension.auto_sharding.strategies import Strategy, StrategyBuilder


def keep_batch_split(
    builder: StrategyBuilder, instruction: Instruction, strategies: tuple[Strategy, ...]
) -> tuple[Strategy, ...]:
    """The strategies with the batch dim on the forced axis; all if no axis is forced or there is no batch dim.

    What Alpa takes for a batch dim may be none: in `a @ a.T`, of parameters, it is dim 0 as well. So one that cannot be
    split over the axis is let be where it has not the size of a batch.

    Raises:
        BatchDimError: no batch dim of the program can be split over the axis, or no strategy does so.
    """
    axis = builder.options.force_batch_dim_to_mesh_axis
    dim = builder.batch.get(instruction)
    if axis is None or dim is None:
        return strategies
    devices = builder.mesh.shape[axis]
    sizes = builder.options.batch_sizes
    is_none = sizes is not None and instruction.shape[dim] not in sizes
    if instruction.shape[dim] % devices:
        if is_none:
            return strategies
        raise errors.BatchDimError.indivisible(instruction.shape, dim, axis, devices)
    wanted = axis if devices > 1 else -1
    kept = tuple(s for s in strategies if builder.mesh.axis_of_dims(s.spec)[dim] == wanted)
    if not kept and is_none:
        return strategies
    if not kept:
        raise errors.BatchDimError.no_strategy(instruction.opcode, instruction.shape, dim, axis)
    return kept
