"""The options of the auto-sharding pass, as alpa sets them in the pass context.

Source: `AutoShardingSolverOption` in tensorflow-alpa's auto_sharding_strategy.h and `AutoSharding::Run`. Options that
alpa 0.2.3 never sets (forced strategies by number, a given solution vector) do not exist here.
"""

from dataclasses import dataclass
from typing import Any

from alpa_on_jax.xla_extension.pass_context import get_batch_sizes, get_option

_PREFIX = "auto_sharding::"


@dataclass(frozen=True, slots=True)
class SolverOptions:
    """What the pass is to do.

    Attributes:
        mesh_shape: The logical mesh, two axes.
        mesh_alpha, mesh_beta: Latency and inverse bandwidth of each axis, in the units of alpa's `LogicalDeviceMesh`.
        profile: alpa's `ProfilingResult` of the physical mesh, or None.
        memory_budget_bytes: What the live values of one device may take; None without limit.
        all_gather_cost, all_to_all_cost: The cost of each such collective instead of the computed one; None: computed.
        allow_replicated_parameters: Whether a parameter may lie on each device as a whole.
        prefer_reduce_scatter: Whether all-reduces become reduce-scatters where that needs no further communication.
        reduce_scatter_grad_acc_friendly: Whether accumulated gradients stay whole nevertheless.
        reduce_scatter_aggressive_partition: Whether parameters are then split too, and gathered for their use.
        batch_matmul_always_split_batch: Whether batched dots on a 2D mesh must be split along a batch dim.
        allow_recompute_heavy_op: Whether a dot may be computed in part on several devices to save communication.
        allow_mixed_mesh_shape: Whether one dim may be split along both axes of a 2D mesh.
        force_batch_dim_to_mesh_axis: The axis along which batch dims must be split; None: they need not.
        batch_sizes: The sizes of the batch dims of the program's arguments; None where they are not known.
        force_simple_heuristic: The rule by which parameters are split instead of solving; empty: solve.
    """

    mesh_shape: tuple[int, int]
    mesh_alpha: tuple[float, float]
    mesh_beta: tuple[float, float]
    profile: Any = None
    memory_budget_bytes: float | None = None
    all_gather_cost: float | None = None
    all_to_all_cost: float | None = None
    allow_replicated_parameters: bool = True
    prefer_reduce_scatter: bool = False
    reduce_scatter_grad_acc_friendly: bool = False
    reduce_scatter_aggressive_partition: bool = False
    batch_matmul_always_split_batch: bool = False
    allow_recompute_heavy_op: bool = False
    allow_mixed_mesh_shape: bool = False
    force_batch_dim_to_mesh_axis: int | None = None
    batch_sizes: frozenset[int] | None = None
    force_simple_heuristic: str = ""


def options_of_pass_context() -> SolverOptions:
    """The options that alpa's `run_auto_sharding_pass` has set for this call."""
    shape = tuple(int(size) for size in _get("device_mesh_shape"))
    budget = float(_get("memory_budget_per_device", -1))
    axis = int(_get("force_batch_dim_to_mesh_dim", -1))
    first, second = shape
    alpha, beta = (tuple(float(x) for x in _get(f"device_mesh_{name}")) for name in ("alpha", "beta"))
    return SolverOptions(
        mesh_shape=(first, second),
        mesh_alpha=(alpha[0], alpha[1]),
        mesh_beta=(beta[0], beta[1]),
        profile=_get("device_mesh_prof_result"),
        memory_budget_bytes=budget if budget > 0 else None,
        all_gather_cost=float(_get("all_gather_cost")) if _get("force_all_gather_cost", False) else None,
        all_to_all_cost=float(_get("all_to_all_cost")) if _get("force_all_to_all_cost", False) else None,
        allow_replicated_parameters=bool(_get("allow_replicated_parameters", True)),
        prefer_reduce_scatter=bool(_get("prefer_reduce_scatter", False)),
        reduce_scatter_grad_acc_friendly=bool(_get("reduce_scatter_grad_acc_friendly", False)),
        reduce_scatter_aggressive_partition=bool(_get("reduce_scatter_aggressive_partition", False)),
        batch_matmul_always_split_batch=bool(_get("batch_matmul_always_split_batch", False)),
        allow_recompute_heavy_op=bool(_get("allow_recompute_heavy_op", False)),
        allow_mixed_mesh_shape=bool(_get("allow_mixed_mesh_shape", False)),
        force_batch_dim_to_mesh_axis=axis if axis >= 0 else None,
        batch_sizes=get_batch_sizes(),
        force_simple_heuristic=str(_get("force_simple_heuristic", "") or ""),
    )


def _get(name: str, default: Any = None) -> Any:
    return get_option(_PREFIX + name, default)
