"""Each field of alpa's `AutoShardingOption` does what it says: to the solution, and never to the result.

A training step of the small MLP is run with the option on 4 devices, and looked at: its objective, its collectives,
where the state and the batch lie. Where the MLP has no use for an option, a program is taken that has. The sizes decide
what the ILP prefers: with a small batch it splits the MLP's parameters, with a large one the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa import AutoShardingOption, ShardParallel
from alpa.shard_parallel import auto_sharding
from alpa.util import count_communication_primitives

from alpa_cfp_bench.workloads.meshes import logical_mesh
from alpa_cfp_bench.workloads.model import Model, train_step
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.sizes import TINY, Size
from alpa_on_jax.jax.interpreters.pxla import Chunked, NoSharding, ShardedAxis, ShardingSpec
from integration.serial import StepValues, assert_equal_up_to_rounding, run_serially, serial_steps

pytestmark = pytest.mark.slow

LARGE_BATCH = Size(batch=256, hidden=8)
MESHES = ("1x4", "4x1", "2x2")
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "without the solver": {"enable_auto_sharding": False},
    "no all-gather": {"allow_all_gather": False},
    "no all-to-all": {"allow_all_to_all": False},
    "no replicated parameters": {"allow_replicated_parameters": False},
    "data parallel": {"force_data_parallel": True},
    "batch along axis 0": {"force_batch_dim_to_mesh_dim": 0},
    "batch along axis 1": {"force_batch_dim_to_mesh_dim": 1},
    "batch along any axis": {"force_batch_dim_to_mesh_dim": -1},
    "ZeRO-3": {"force_zero_stage_3": True},
    "ZeRO-3 with small all-gathers": {"force_zero_stage_3": True, "force_zero_stage_3_all_gather_threshold": 4096},
    "reduce-scatter": {"prefer_reduce_scatter": True},
    "ZeRO-2": {"force_data_parallel": True, "prefer_reduce_scatter": True},
    "mixed mesh shape": {"allow_mixed_mesh_shape": True},
    "recomputation": {"allow_recompute_heavy_op": True},
    "the largest dim": {"force_simple_heuristic": "shard-largest"},
    "the first dim": {"force_simple_heuristic": "shard-first"},
    "the last dim": {"force_simple_heuristic": "shard-last"},
    "small all-reduces": {"force_data_parallel": True, "all_reduce_threshold": 8192},
}


@dataclass(frozen=True)
class Collectives:
    """How many collectives of each kind a compiled program has."""

    all_reduce: int
    all_gather: int
    reduce_scatter: int
    all_to_all: int

    @classmethod
    def of(cls, executable: Any) -> "Collectives":
        """Of an executable of alpa."""
        _, *counts = count_communication_primitives(executable.get_hlo_text())
        return cls(*counts)


@dataclass(frozen=True)
class Outcome:
    """What a step with an option gave.

    Attributes:
        values: what it computed.
        state: the state as alpa gives it back, on its devices.
        executable: alpa's executable.
        objective: the ILP's.
        collectives: the program's.
    """

    values: StepValues
    state: Any
    executable: Any
    objective: float
    collectives: Collectives


@cache
def step(
    mesh: str, num_micro_batches: int | None = None, model: str = "mlp", size: Size = TINY, **options: Any
) -> Outcome:
    """One training step on `mesh` with `AutoShardingOption(**options)`."""
    built = build(model, size)
    method = ShardParallel(
        devices=logical_mesh(mesh),
        num_micro_batches=num_micro_batches,
        auto_sharding_option=AutoShardingOption(**options),
    )
    function: Any = alpa.parallelize(train_step(built, alpa.value_and_grad), method=method)
    state, metrics, grads = function(jax.tree.map(jnp.copy, built.state), built.batch)
    executable = function.get_last_executable()
    return Outcome(
        StepValues(*jax.tree.map(np.asarray, (state, metrics, grads))),
        state,
        executable,
        executable.auto_sharding_objective,
        Collectives.of(executable),
    )


def input_spec(outcome: Outcome, name: str = "x") -> Any:
    """How the program takes the array `name` of the batch, as alpa's `ShardingSpec`."""
    _, placements = outcome.executable.get_input_placement_specs()
    return placements[name].sharding_specs[0]


def batch_axis(outcome: Outcome, mesh: str) -> int | None:
    """The axis of the logical mesh along which dim 0 of the MLP's inputs is split; None where it is not."""
    spec = input_spec(outcome)
    if isinstance(spec.sharding[0], NoSharding):
        return None
    # Cuts are numbered over the dims, and the mesh mapping leaves out axes of one device.
    axes = [axis for axis, size in enumerate(mesh.split("x")) if size != "1"]
    return axes[list(spec.mesh_mapping).index(ShardedAxis(0))]


@cache
def serial(num_micro_batches: int | None, model: str = "mlp", size: Size = TINY) -> StepValues:
    """What one step of `model` gives on one device."""
    return serial_steps(build(model, size), num_micro_batches, 1)[0]


def split_dims(array: jax.Array) -> tuple[int, ...]:
    """The number of parts of each dim of `array`."""
    shard = array.sharding.shard_shape(array.shape)
    return tuple(size // part for size, part in zip(array.shape, shard, strict=True))


def matrices(tree: Any) -> list[jax.Array]:
    """The arrays of rank 2 in `tree`."""
    return [leaf for leaf in jax.tree.leaves(tree) if leaf.ndim == 2]


def is_replicated(tree: Any) -> bool:
    """Whether each device has the whole of every array."""
    return all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("num_micro_batches", [None, 2])
@pytest.mark.parametrize("mesh", ["1x4", "2x2"])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.filterwarnings("ignore:Detect unexpected behaviors")
def test_the_step_equals_the_serial_one_with_every_option(
    option: str, mesh: str, num_micro_batches: int | None
) -> None:
    actual, expected = step(mesh, num_micro_batches, **OPTIONS[option]).values, serial(num_micro_batches)
    assert_equal_up_to_rounding(actual.grads, expected.grads)
    assert_equal_up_to_rounding(actual.state, expected.state)
    assert_equal_up_to_rounding(actual.metrics, expected.metrics)


def test_without_enable_auto_sharding_nothing_is_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    def solve(*args: Any) -> Any:
        raise RuntimeError("the solver was called")

    monkeypatch.setattr(auto_sharding, "_call_solver_serialized_args", solve)
    step.__wrapped__("1x4", enable_auto_sharding=False)
    with pytest.raises(RuntimeError, match="the solver was called"):
        step.__wrapped__("1x4", enable_auto_sharding=True)


def test_without_enable_auto_sharding_only_what_is_given_is_split() -> None:
    outcome = step("1x4", enable_auto_sharding=False)
    assert is_replicated(outcome.state)
    assert batch_axis(outcome, "1x4") is None
    assert outcome.collectives == Collectives(0, 0, 0, 0)


def _sort_along_both_dims(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.sort(jnp.sort(x @ w, axis=0), axis=1)


def _tanh_of_one_by_one(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def _program(function: Callable[..., Any], shapes: list[tuple[int, int]], mesh: str, **options: Any) -> Any:
    """Alpa's executable of `function`, after its result was held against the serial one."""
    rng = np.random.default_rng(0)
    args = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]
    method = ShardParallel(devices=logical_mesh(mesh), auto_sharding_option=AutoShardingOption(**options))
    # A function of its own, since alpa keeps what it has compiled by function.
    parallel: Any = alpa.parallelize(lambda *args: function(*args), method=method, donate_argnums=(), batch_argnums=())
    assert_equal_up_to_rounding(np.asarray(parallel(*args)), run_serially(function, *args))
    return parallel.get_last_executable()


def test_without_allow_all_gather_a_value_is_summed_where_it_would_be_gathered() -> None:
    # No device may have a part of a dim that is sorted, so the product has to be whole: in columns and then gathered,
    # or as a sum, which moves twice as much.
    shapes = [(32, 32), (32, 32)]
    allowed = _program(_sort_along_both_dims, shapes, "1x4")
    forbidden = _program(_sort_along_both_dims, shapes, "1x4", allow_all_gather=False)
    assert Collectives.of(allowed).all_reduce == 0
    assert Collectives.of(forbidden) == Collectives(all_reduce=1, all_gather=0, reduce_scatter=0, all_to_all=0)
    assert allowed.auto_sharding_objective < forbidden.auto_sharding_objective < auto_sharding.INFINITY_COST


def test_without_allow_all_to_all_experts_are_not_split() -> None:
    # Where experts are split, tokens go to them and come back by all-to-alls.
    allowed, forbidden = step("1x4", model="moe"), step("1x4", model="moe", allow_all_to_all=False)
    assert allowed.collectives.all_to_all > 0
    assert forbidden.collectives.all_to_all == 0
    assert allowed.objective < forbidden.objective < auto_sharding.INFINITY_COST


def test_without_allow_all_to_all_the_step_of_a_mixture_of_experts_equals_the_serial_one() -> None:
    assert_equal_up_to_rounding(
        step("1x4", model="moe", allow_all_to_all=False).values.grads, serial(None, model="moe").grads
    )


def test_without_allow_replicated_parameters_every_parameter_is_split() -> None:
    allowed, forbidden = step("1x4"), step("1x4", allow_replicated_parameters=False)
    assert any(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(allowed.state.params))
    assert not any(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(forbidden.state.params))
    assert allowed.objective < forbidden.objective < auto_sharding.INFINITY_COST


@pytest.mark.parametrize("mesh", MESHES)
def test_force_data_parallel_splits_the_batch_over_all_devices_and_nothing_else(mesh: str) -> None:
    outcome = step(mesh, force_data_parallel=True)
    assert is_replicated(outcome.state)
    assert outcome.collectives == Collectives(all_reduce=1, all_gather=0, reduce_scatter=0, all_to_all=0)
    assert input_spec(outcome) == ShardingSpec([Chunked([4]), NoSharding()], [ShardedAxis(0)])


def test_force_batch_dim_to_mesh_dim_splits_a_batch_that_would_not_be_split() -> None:
    free, forced = step("4x1"), step("4x1", force_batch_dim_to_mesh_dim=0)
    assert batch_axis(free, "4x1") is None
    assert batch_axis(forced, "4x1") == 0
    assert free.objective < forced.objective


def test_on_a_2d_mesh_the_batch_is_split_along_axis_0_unless_another_axis_is_given() -> None:
    default, second = step("2x2"), step("2x2", force_batch_dim_to_mesh_dim=1)
    assert batch_axis(default, "2x2") == 0
    assert batch_axis(second, "2x2") == 1


def test_force_batch_dim_to_mesh_dim_of_minus_one_leaves_the_choice_to_the_solver() -> None:
    free = step("2x2", force_batch_dim_to_mesh_dim=-1)
    assert free.objective < step("2x2").objective


@pytest.mark.parametrize("num_micro_batches", [None, 2])
@pytest.mark.parametrize("mesh", MESHES)
def test_force_zero_stage_3_splits_parameters_and_momentum_over_all_devices(
    mesh: str, num_micro_batches: int | None
) -> None:
    outcome = step(mesh, num_micro_batches, force_zero_stage_3=True)
    state = outcome.state
    assert all(np.prod(split_dims(leaf)) == 4 for leaf in matrices(state.params) + matrices(state.opt_state))
    assert outcome.collectives.all_gather > 0


def test_force_zero_stage_3_all_gather_threshold_keeps_all_gathers_apart() -> None:
    together, apart = step("1x4", **OPTIONS["ZeRO-3"]), step("1x4", **OPTIONS["ZeRO-3 with small all-gathers"])
    assert together.collectives.all_gather < apart.collectives.all_gather


@pytest.mark.parametrize("mesh", MESHES)
def test_prefer_reduce_scatter_splits_the_momentum_but_not_the_parameters(mesh: str) -> None:
    whole, split = step(mesh, **OPTIONS["data parallel"]), step(mesh, **OPTIONS["ZeRO-2"])
    assert whole.collectives.reduce_scatter == 0
    assert split.collectives.reduce_scatter > 0
    assert is_replicated(split.state.params)
    assert all(np.prod(split_dims(leaf)) == 4 for leaf in matrices(split.state.opt_state))
    assert whole.objective == split.objective


def test_prefer_reduce_scatter_with_micro_batches_splits_the_momentum_and_sums_as_before() -> None:
    split = step("1x4", 2, **OPTIONS["ZeRO-2"])
    assert all(np.prod(split_dims(leaf)) == 4 for leaf in matrices(split.state.opt_state))
    assert split.collectives.reduce_scatter == 0


def test_allow_mixed_mesh_shape_finds_a_cheaper_solution_for_a_large_batch() -> None:
    plain = step("2x2", size=LARGE_BATCH)
    mixed = step("2x2", size=LARGE_BATCH, allow_mixed_mesh_shape=True)
    assert mixed.objective < plain.objective
    assert mixed.collectives != plain.collectives
    assert_equal_up_to_rounding(mixed.values.grads, serial_steps(build("mlp", LARGE_BATCH), None, 1)[0].grads)


def test_allow_recompute_heavy_op_lets_devices_compute_the_same_parts_of_a_dot() -> None:
    # A result of one element cannot be split, and the contracting dim is split along one axis only.
    shapes = [(1, 64), (64, 1)]
    with pytest.warns(UserWarning, match="unexpected behaviors"):
        forbidden = _program(_tanh_of_one_by_one, shapes, "2x2", force_batch_dim_to_mesh_dim=-1)
    allowed = _program(
        _tanh_of_one_by_one, shapes, "2x2", force_batch_dim_to_mesh_dim=-1, allow_recompute_heavy_op=True
    )
    assert allowed.auto_sharding_objective < auto_sharding.INFINITY_COST < forbidden.auto_sharding_objective


@pytest.mark.parametrize(
    ("heuristic", "mesh", "kernel", "bias"),
    [
        # Kernels of Dense_0 are (32, 64), of Dense_1 (64, 32).
        ("shard-largest", "1x4", {(1, 4), (4, 1)}, {(4,)}),
        ("shard-largest", "4x1", {(1, 4), (4, 1)}, {(4,)}),
        ("shard-largest", "2x2", {(2, 2)}, {(4,)}),
        ("shard-first", "1x4", {(4, 1)}, {(4,)}),
        ("shard-first", "2x2", {(4, 1)}, {(4,)}),
        ("shard-last", "4x1", {(1, 4)}, {(4,)}),
        ("shard-last", "2x2", {(1, 4)}, {(4,)}),
    ],
)
@pytest.mark.parametrize("num_micro_batches", [None, 2])
def test_force_simple_heuristic_splits_parameters_by_its_rule(
    heuristic: str,
    mesh: str,
    kernel: set[tuple[int, ...]],
    bias: set[tuple[int, ...]],
    num_micro_batches: int | None,
) -> None:
    state = step(mesh, num_micro_batches, force_simple_heuristic=heuristic).state
    for tree in (state.params, state.opt_state):
        assert {split_dims(leaf) for leaf in matrices(tree)} == kernel
        assert {split_dims(leaf) for leaf in jax.tree.leaves(tree) if leaf.ndim == 1} == bias


def test_force_simple_heuristic_splits_the_batch_as_any_other_parameter() -> None:
    assert batch_axis(step("1x4", force_simple_heuristic="shard-first"), "1x4") == 1
    assert batch_axis(step("1x4", force_simple_heuristic="shard-last"), "1x4") is None


def test_shard_largest_on_a_2d_mesh_has_the_largest_dim_on_axis_1() -> None:
    params = step("2x2", force_simple_heuristic="shard-largest").state.params["params"]
    wide, tall = params["Dense_0"]["kernel"], params["Dense_1"]["kernel"]
    assert wide.shape == tall.shape[::-1] == (32, 64)
    assert list(wide.sharding_spec.mesh_mapping) == [ShardedAxis(0), ShardedAxis(1)]
    assert list(tall.sharding_spec.mesh_mapping) == [ShardedAxis(1), ShardedAxis(0)]


def test_all_reduce_threshold_keeps_large_all_reduces_apart() -> None:
    together, apart = step("1x4", **OPTIONS["data parallel"]), step("1x4", **OPTIONS["small all-reduces"])
    # Four kernels of 8192 bytes each; the biases and the loss fit into one.
    assert (together.collectives.all_reduce, apart.collectives.all_reduce) == (1, 5)


METHODS = {
    "DataParallel": alpa.DataParallel,
    "Zero2Parallel": alpa.Zero2Parallel,
    "Zero3Parallel": alpa.Zero3Parallel,
}


def _two_steps(model: Model, method: Any) -> StepValues:
    function: Any = alpa.parallelize(train_step(model, alpa.value_and_grad), method=method)
    state, metrics, grads = jax.tree.map(jnp.copy, model.state), None, None
    for _ in range(2):
        state, metrics, grads = function(state, model.batch)
    return StepValues(*jax.tree.map(np.asarray, (state, metrics, grads)))


@pytest.mark.parametrize("num_micro_batches", [None, 2])
@pytest.mark.parametrize("mesh", ["1x4", "2x2"])
@pytest.mark.parametrize("method", METHODS)
def test_two_steps_of_a_data_parallel_method_equal_the_serial_ones(
    method: str, mesh: str, num_micro_batches: int | None
) -> None:
    model = build("mlp")
    actual = _two_steps(model, METHODS[method](logical_mesh(mesh), num_micro_batches))
    expected = serial_steps(model, num_micro_batches, 2)[-1]
    assert_equal_up_to_rounding(actual.grads, expected.grads)
    assert_equal_up_to_rounding(actual.state, expected.state)
    assert_equal_up_to_rounding(actual.metrics, expected.metrics)


@pytest.mark.parametrize("num_micro_batches", [None, 2])
def test_shard_parallel_without_options_uses_all_devices_and_equals_the_serial_run(
    num_micro_batches: int | None,
) -> None:
    model = build("mlp")
    actual = _two_steps(model, ShardParallel(num_micro_batches=num_micro_batches))
    assert_equal_up_to_rounding(actual.state, serial_steps(model, num_micro_batches, 2)[-1].state)
