"""Shardings that cannot be: wished for by hand, or looked for by auto-sharding."""

from collections.abc import Sequence
from typing import Any

from alpa_on_jax.errors.base import AlpaOnJaxError


class HybridShardingError(AlpaOnJaxError, NotImplementedError):
    """Manual shardings and the solver were asked for together."""

    def __init__(self) -> None:
        super().__init__(
            "manual_sharding_option was given together with enable_auto_sharding=True, but alpa's solver cannot start "
            "from manual shardings. Set auto_sharding_option=AutoShardingOption(enable_auto_sharding=False), which "
            "propagates them, or leave manual_sharding_option out"
        )


class AutoShardingInfeasibleError(AlpaOnJaxError, RuntimeError):
    """Alpa's ILP has no solution, or its solver found none."""

    @classmethod
    def memory(cls, budget_bytes: float) -> "AutoShardingInfeasibleError":
        return cls(
            f"no sharding of this program fits into the memory budget of {budget_bytes / 2**20:,.1f} MiB a device. "
            "Give a larger memory_budget_per_device, use more devices, or make the program smaller (more "
            "micro-batches, rematerialisation)"
        )

    @classmethod
    def no_solution(cls, status: str, seconds: float, limit: float) -> "AutoShardingInfeasibleError":
        return cls(
            f"the ILP solver stopped after {seconds:.0f} s without a solution (PuLP's status: {status!r}; its "
            f"time limit is {limit:.0f} s). Give it a smaller problem: fewer layers in a stage, or options that leave "
            "it less choice (force_data_parallel, force_batch_dim_to_mesh_dim)"
        )

    @classmethod
    def aliases(cls, shape: Sequence[int]) -> "AutoShardingInfeasibleError":
        return cls(
            f"a donated argument of shape {tuple(shape)} and the result that takes its buffer cannot be sharded in "
            "the same way, because no strategy is common to both. Do not donate this argument (donate_argnums)"
        )

    @classmethod
    def conflicting_aliases(cls) -> "AutoShardingInfeasibleError":
        return cls(
            "there is no sharding in which every donated argument is sharded as the result that takes its buffer. "
            "Donate fewer arguments (donate_argnums)"
        )


class BatchDimError(AlpaOnJaxError, ValueError):
    """A batch dim that must be split along an axis and cannot be."""

    @classmethod
    def indivisible(cls, shape: Sequence[int], dim: int, axis: int, devices: int) -> "BatchDimError":
        return cls(
            f"an array of shape {tuple(shape)} has its batch in dim {dim}, which must be split over the {devices} "
            f"devices along axis {axis} of the logical mesh and is not divided by them. Change the batch size (with "
            "micro-batches it is that of one micro-batch), or set force_batch_dim_to_mesh_dim=-1 in the "
            "AutoShardingOption"
        )

    @classmethod
    def no_strategy(cls, op: str, shape: Sequence[int], dim: int, axis: int) -> "BatchDimError":
        return cls(
            f"no strategy of the op {op} with a result of shape {tuple(shape)} splits its batch dim {dim} along "
            f"axis {axis} of the logical mesh. Set force_batch_dim_to_mesh_dim=-1 in the AutoShardingOption, or use a "
            "1D mesh"
        )


class HeuristicError(AlpaOnJaxError, ValueError):
    """`force_simple_heuristic` names no rule."""

    def __init__(self, name: Any, known: Sequence[str]) -> None:
        super().__init__(
            f"force_simple_heuristic={name!r} is no rule by which parameters can be split. Give one of "
            f"{', '.join(map(repr, known))}, or '' to let alpa's ILP choose"
        )
