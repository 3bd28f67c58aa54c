"""What `alpa.parallelize` offers on a local mesh, feature by feature, each against the serial run.

The methods that build on another function, gradients, donation, static arguments, meshes of every shape, and when a
function is compiled again. What an executable gives besides its results is in `test_executables.py`.
"""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa import AutoShardingOption, CreateStateParallel, FollowParallel, LocalPhysicalDeviceMesh, ShardParallel
from alpa.parallel_method import LocalPipelineParallel
from alpa.pipeline_parallel.layer_construction import manual_layer_construction
from jax.sharding import PartitionSpec

from alpa_cfp_bench.workloads.meshes import logical_mesh
from alpa_cfp_bench.workloads.model import Model, train_step
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.sizes import MESH_AXES, mesh_shape
from integration.parallel import Case, parallel_method
from integration.serial import assert_equal_up_to_rounding, run_serially, serial_steps

pytestmark = pytest.mark.slow

NO_SOLVER = AutoShardingOption(enable_auto_sharding=False)
with_and_without_micro_batches = pytest.mark.parametrize("num_micro_batches", [None, 2])


@pytest.fixture(autouse=True)
def _ray_is_not_imported() -> Any:
    before = "ray" in sys.modules
    yield
    assert ("ray" in sys.modules) == before


def host(tree: Any) -> Any:
    """`tree` with numpy arrays as leaves: values that no donation can delete."""
    return jax.tree.map(np.array, tree)


def copies(tree: Any) -> Any:
    """`tree` with arrays of its own as leaves, which may be donated."""
    return jax.tree.map(jnp.array, tree)


def parallel_step(
    model: Model, num_micro_batches: int | None = None, mesh: str = "2x4", style: str = "megatron"
) -> Any:
    """The training step of `model` as a parallelized function."""
    method = parallel_method(Case(model.name, mesh, style, num_micro_batches))
    return alpa.parallelize(train_step(model, alpa.value_and_grad), method=method)


def sharded(mesh: Any, *specs: PartitionSpec, num_micro_batches: int | None = None) -> ShardParallel:
    """Manual sharding of the arguments by `specs`, and no solver."""
    manual = alpa.ManualShardingOption(MESH_AXES, in_axis_resources=specs)
    return ShardParallel(
        devices=mesh,
        num_micro_batches=num_micro_batches,
        auto_sharding_option=NO_SOLVER,
        manual_sharding_option=manual,
    )


def weights_and_batch() -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of which every dim is a multiple of 8."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(16, 8)).astype(np.float32), rng.normal(size=(32, 16)).astype(np.float32)


def squares(w: jax.Array, x: jax.Array) -> jax.Array:
    """A mean over samples that depends on both arguments."""
    return jnp.mean(jnp.tanh(x @ w) ** 2)


# Methods that build on another function.


@with_and_without_micro_batches
def test_a_created_state_lies_where_the_step_wants_it(num_micro_batches: int | None) -> None:
    model = build("mlp")
    step = parallel_step(model, num_micro_batches)
    create = alpa.parallelize(lambda: deterministic_state(model), method=CreateStateParallel(step, model.batch))
    state = create()
    wanted = step.get_last_executable().get_input_placement_specs()[0]
    actual = create.get_last_executable().get_output_placement_specs()
    assert jax.tree.leaves(actual) == jax.tree.leaves(wanted)
    kernel = state.params["params"]["Dense_0"]["kernel"]
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(32, 16)}


@with_and_without_micro_batches
def test_a_step_on_a_created_state_equals_the_serial_step(num_micro_batches: int | None) -> None:
    model = build("mlp")
    step = parallel_step(model, num_micro_batches)
    create = alpa.parallelize(lambda: deterministic_state(model), method=CreateStateParallel(step, model.batch))
    compiled_for = create()
    executable = step.get_last_executable()
    state, metrics, grads = step(compiled_for, model.batch)
    assert step.get_last_executable() is executable, "the created state was another argument than expected"
    start = Model("mlp", deterministic_state(model), model.batch, model.loss, model.update)
    (expected,) = serial_steps(start, num_micro_batches, 1)
    assert_equal_up_to_rounding(host((state, metrics, grads)), (expected.state, expected.metrics, expected.grads))


def deterministic_state(model: Model) -> Any:
    """A state of the structure of `model.state`, computed without random numbers."""
    leaves, structure = jax.tree.flatten(model.state)

    def values(number: int, leaf: jax.Array) -> jax.Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.zeros_like(leaf)
        return (jnp.sin(jnp.arange(leaf.size) + number) / 4).reshape(leaf.shape).astype(leaf.dtype)

    return jax.tree.unflatten(structure, [values(number, leaf) for number, leaf in enumerate(leaves)])


@with_and_without_micro_batches
def test_a_following_function_equals_the_serial_one_and_takes_the_parameters_as_they_lie(
    num_micro_batches: int | None,
) -> None:
    model = build("mlp")
    step = parallel_step(model, num_micro_batches)
    state, _, _ = step(copies(model.state), model.batch)

    def evaluate(params: Any, batch: Any) -> jax.Array:
        return model.loss(params, model.state, batch)[0]

    follow = alpa.parallelize(evaluate, method=FollowParallel(step))
    result = follow(state.params, model.batch)
    assert_equal_up_to_rounding(host(result), run_serially(evaluate, host(state.params), model.batch))
    wanted = step.get_last_executable().get_input_placement_specs()[0].params
    actual = follow.get_last_executable().get_input_placement_specs()[0]
    assert jax.tree.leaves(actual) == jax.tree.leaves(wanted)


@with_and_without_micro_batches
def test_a_following_function_may_take_the_whole_state(num_micro_batches: int | None) -> None:
    model = build("mlp")
    step = parallel_step(model, num_micro_batches)
    state, _, _ = step(copies(model.state), model.batch)

    def evaluate(state: Any, batch: Any) -> jax.Array:
        return model.loss(state.params, state, batch)[0]

    follow = alpa.parallelize(evaluate, donate_argnums=(), method=FollowParallel(step))
    result = follow(state, model.batch)
    assert_equal_up_to_rounding(host(result), run_serially(evaluate, host(state), model.batch))
    wanted = step.get_last_executable().get_input_placement_specs()[0]
    actual = follow.get_last_executable().get_input_placement_specs()[0]
    assert jax.tree.leaves(actual) == jax.tree.leaves(wanted)


def test_a_local_pipeline_equals_the_serial_run() -> None:
    w, x = weights_and_batch()
    v = np.ascontiguousarray(w.T)

    def gradients(params: Any, x: jax.Array, divide: Callable[..., Any]) -> Any:
        def loss(params: Any) -> jax.Array:
            hidden = jnp.tanh(x @ params["w"])
            alpa.mark_pipeline_boundary()
            return jnp.mean((hidden @ params["v"]) ** 2)

        return jax.grad(divide(loss))(params)

    parallel = alpa.parallelize(
        lambda params, x: gradients(params, x, manual_layer_construction),
        method=LocalPipelineParallel(),
        donate_argnums=(),
    )
    params = {"w": w, "v": v}
    expected = run_serially(lambda params, x: gradients(params, x, lambda loss: loss), params, x)
    assert_equal_up_to_rounding(host(parallel(params, x)), expected)


# Gradients.


@with_and_without_micro_batches
@pytest.mark.parametrize("argnums", [0, 1, (0, 1)])
def test_gradients_by_argnums_equal_the_serial_ones(argnums: Any, num_micro_batches: int | None) -> None:
    w, x = weights_and_batch()

    def gradients(w: jax.Array, x: jax.Array, bias: jax.Array, grad: Any) -> Any:
        return grad(lambda w, bias: squares(w, x) + jnp.mean(bias * jnp.mean(x)), argnums=argnums)(w, bias)

    method = sharded(
        logical_mesh("2x4"),
        PartitionSpec(None, "model"),
        PartitionSpec("data"),
        PartitionSpec(),
        num_micro_batches=num_micro_batches,
    )
    parallel = alpa.parallelize(lambda w, x, bias: gradients(w, x, bias, alpa.grad), method=method, donate_argnums=())
    expected = run_serially(lambda w, x, bias: gradients(w, x, bias, jax.grad), w, x, w[0])
    assert_equal_up_to_rounding(host(parallel(w, x, w[0])), expected)


@with_and_without_micro_batches
def test_value_gradient_and_auxiliary_values_equal_the_serial_ones(num_micro_batches: int | None) -> None:
    w, x = weights_and_batch()

    def outputs(w: jax.Array, x: jax.Array, value_and_grad: Any) -> Any:
        def loss(w: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
            return squares(w, x), {"mean": jnp.mean(x @ w), "columns": jnp.mean(x, axis=0)}

        return value_and_grad(loss, has_aux=True)(w)

    method = sharded(
        logical_mesh("2x4"), PartitionSpec(None, "model"), PartitionSpec("data"), num_micro_batches=num_micro_batches
    )
    parallel = alpa.parallelize(lambda w, x: outputs(w, x, alpa.value_and_grad), method=method, donate_argnums=())
    # Everything here is a mean over samples, so that the mean over micro-batches is the value for the whole batch.
    assert_equal_up_to_rounding(
        host(parallel(w, x)), run_serially(lambda w, x: outputs(w, x, jax.value_and_grad), w, x)
    )


# Donation and static arguments.


def _scaled_update(w: jax.Array, x: jax.Array) -> jax.Array:
    return w - alpa.grad(lambda w: squares(w, x))(w)


@with_and_without_micro_batches
def test_donated_arrays_are_deleted_and_others_are_not(num_micro_batches: int | None) -> None:
    w, x = weights_and_batch()
    method = sharded(
        logical_mesh("2x4"), PartitionSpec(None, "model"), PartitionSpec("data"), num_micro_batches=num_micro_batches
    )
    step = alpa.parallelize(_scaled_update, method=method, donate_argnums=(0,))
    # Nothing looks at `first` before: numpy's view of a buffer on the CPU keeps JAX from giving it up.
    first, batch = step(jnp.array(w), jnp.array(x)), jnp.array(x)
    second = step(first, batch)
    assert first.is_deleted()
    assert not batch.is_deleted()
    expected = run_serially(lambda w, x: _scaled_update(_scaled_update(w, x), x), w, x)
    assert_equal_up_to_rounding(host(second), expected)


@with_and_without_micro_batches
def test_without_donation_the_arguments_stay(num_micro_batches: int | None) -> None:
    w, x = weights_and_batch()
    method = sharded(
        logical_mesh("2x4"), PartitionSpec(None, "model"), PartitionSpec("data"), num_micro_batches=num_micro_batches
    )
    step = alpa.parallelize(_scaled_update, method=method, donate_argnums=())
    placed = step(jnp.array(w), x)
    before = host(placed)
    once, again = step(placed, x), step(placed, x)
    np.testing.assert_array_equal(np.asarray(placed), before)
    np.testing.assert_array_equal(np.asarray(once), np.asarray(again))


def test_a_donated_numpy_array_keeps_its_values() -> None:
    # Arrays on the CPU may share the memory of numpy's, which a program must not write into.
    w, x = weights_and_batch()
    before = w.copy()
    step = alpa.parallelize(
        _scaled_update, method=sharded(logical_mesh("2x4"), PartitionSpec(), PartitionSpec("data")), donate_argnums=(0,)
    )
    jax.block_until_ready(step(w, x))
    np.testing.assert_array_equal(w, before)


def test_an_array_that_is_donated_twice_gives_the_serial_result() -> None:
    # A moving average of the parameters starts as the parameters: two leaves of a state are one array.
    w, _ = weights_and_batch()
    step = alpa.parallelize(
        lambda state: {"params": state["params"] * 2, "average": state["average"] + state["params"]},
        method=ShardParallel(devices=logical_mesh("1x8"), auto_sharding_option=NO_SOLVER),
        batch_argnums=(),
        donate_argnums=(0,),
    )
    shared = jnp.array(w)
    result = step({"params": shared, "average": shared})
    assert_equal_up_to_rounding(host(result), {"params": w * 2, "average": w * 2})
    again = step({"params": result["params"], "average": result["params"]})
    assert_equal_up_to_rounding(host(again), {"params": w * 4, "average": w * 4})


def test_static_arguments_are_python_values_and_each_value_is_a_program() -> None:
    w, x = weights_and_batch()

    def power(w: jax.Array, x: jax.Array, exponent: int, options: dict[str, bool]) -> jax.Array:
        result = x @ w
        for _ in range(exponent):
            result = result * result
        return -result if options["negative"] else result

    parallel = alpa.parallelize(
        power,
        static_argnums=(2, 3),
        donate_argnums=(),
        method=ShardParallel(devices=logical_mesh("1x8"), auto_sharding_option=NO_SOLVER),
    )
    for exponent, negative in ((1, False), (2, False), (2, True)):
        expected = run_serially(lambda w, x, e=exponent, n=negative: power(w, x, e, {"negative": n}), w, x)
        assert_equal_up_to_rounding(host(parallel(w, x, exponent, {"negative": negative})), expected)
    last = parallel.get_last_executable()
    parallel(w, x, 2, {"negative": True})
    assert parallel.get_last_executable() is last


# Meshes, and when a function is compiled again.


@pytest.mark.parametrize("name", ["1x8", "8x1", "2x4", "4x2", "1x1"])
@with_and_without_micro_batches
def test_each_logical_mesh_gives_the_serial_result_in_parts_of_the_right_shape(
    name: str, num_micro_batches: int | None
) -> None:
    w, x = weights_and_batch()
    method = sharded(
        logical_mesh(name), PartitionSpec(None, "model"), PartitionSpec("data"), num_micro_batches=num_micro_batches
    )
    step = alpa.parallelize(_scaled_update, method=method, donate_argnums=())
    result = step(step(w, x), x)
    expected = run_serially(lambda w, x: _scaled_update(_scaled_update(w, x), x), w, x)
    assert_equal_up_to_rounding(host(result), expected)
    data, model = mesh_shape(name)
    assert {shard.data.shape for shard in result.addressable_shards} == {(16, 8 // model)}
    assert len(result.sharding.device_set) == data * model


def test_a_subset_of_the_devices_computes_and_the_others_hold_nothing() -> None:
    w, x = weights_and_batch()
    chosen = jax.devices()[4:8]
    mesh = LocalPhysicalDeviceMesh(chosen).get_logical_mesh((2, 2))
    step = alpa.parallelize(
        _scaled_update, method=sharded(mesh, PartitionSpec(None, "model"), PartitionSpec("data")), donate_argnums=()
    )
    result = step(step(w, x), x)
    assert result.sharding.device_set == set(chosen)
    expected = run_serially(lambda w, x: _scaled_update(_scaled_update(w, x), x), w, x)
    assert_equal_up_to_rounding(host(result), expected)


def test_a_list_of_devices_is_a_mesh() -> None:
    w, x = weights_and_batch()
    chosen = jax.devices()[2:6]
    method = ShardParallel(devices=chosen, auto_sharding_option=NO_SOLVER)
    result = alpa.parallelize(_scaled_update, method=method, donate_argnums=())(w, x)
    assert result.sharding.device_set == set(chosen)
    assert_equal_up_to_rounding(host(result), run_serially(_scaled_update, w, x))


@with_and_without_micro_batches
def test_results_can_be_arguments_and_nothing_is_compiled_again(num_micro_batches: int | None) -> None:
    model = build("mlp")
    # flax's own first step number is a Python number: its successor must be the same kind of argument.
    start = copies(model.state).replace(step=0)
    step = parallel_step(model, num_micro_batches)
    state, _, _ = step(start, model.batch)
    executable = step.get_last_executable()
    for _ in range(2):
        state, _, _ = step(state, model.batch)
        assert step.get_last_executable() is executable
    expected = serial_steps(model, num_micro_batches, 3)[-1].state
    assert_equal_up_to_rounding(host(state.params), expected.params)
    assert int(state.step) == 3


@with_and_without_micro_batches
def test_another_batch_size_is_another_program_and_gives_the_serial_result(num_micro_batches: int | None) -> None:
    w, x = weights_and_batch()
    method = sharded(
        logical_mesh("2x4"), PartitionSpec(None, "model"), PartitionSpec("data"), num_micro_batches=num_micro_batches
    )
    step = alpa.parallelize(_scaled_update, method=method, donate_argnums=())
    executables = []
    for size in (32, 16, 32):
        assert_equal_up_to_rounding(host(step(w, x[:size])), run_serially(_scaled_update, w, x[:size]))
        executables.append(step.get_last_executable())
    assert executables[0] is executables[2]
    assert executables[0] is not executables[1]


_EVERYTHING_LOCAL = """
import sys, tempfile
import alpa, jax, jax.numpy as jnp, numpy as np
alpa.init(cluster="local")
off = alpa.AutoShardingOption(enable_auto_sharding=False)
mesh = alpa.LocalPhysicalDeviceMesh().get_logical_mesh((2, 4))
step = alpa.parallelize(lambda w, x: w - alpa.grad(lambda w: jnp.mean((x @ w) ** 2))(w),
                        method=alpa.ShardParallel(devices=mesh, num_micro_batches=2, auto_sharding_option=off))
w = step(jnp.ones((8, 8)), jnp.ones((16, 8)))
executable = step.get_last_executable()
executable.get_hlo_text()
executable.get_parallel_plan()
specs = executable.get_input_placement_specs()
with tempfile.TemporaryDirectory() as folder:
    executable.dump_debug_info(folder)
    alpa.save_checkpoint(folder, {"w": w}, 1)
    alpa.restore_checkpoint(folder, 1, {"w": specs[0]})
alpa.set_seed(1)
alpa.shutdown()
print("ray" in sys.modules)
"""


def test_a_process_that_uses_local_meshes_only_never_imports_ray() -> None:
    process = subprocess.run(
        [sys.executable, "-c", _EVERYTHING_LOCAL], capture_output=True, text=True, check=False, timeout=300
    )
    assert process.returncode == 0, process.stderr[-2000:]
    assert process.stdout.split() == ["False"]
