"""What else alpa offers on a mesh: each on two hosts, against the serial run or the local mesh."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import ray
from alpa import CreateStateParallel, FollowParallel, ShardParallel
from alpa.device_mesh import DistributedArray, get_global_cluster

from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from alpa_on_jax.jax.interpreters.pxla import spec_to_indices
from alpa_on_jax.ray_mesh.failures.calling import call_on_hosts
from integration.serial import assert_equal_up_to_rounding, run_serially


def weights_and_batch() -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of which every dim is a multiple of 8."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(16, 8)).astype(np.float32), rng.normal(size=(32, 16)).astype(np.float32)


def update(w: Any, x: Any) -> Any:
    """A step of one weight."""
    return w - 0.1 * alpa.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)


def serial_update(w: Any, x: Any) -> Any:
    return w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)


def on_mesh(function: Any = update, **options: Any) -> Any:
    # A function of its own, so that what is compiled is this test's.
    return alpa.parallelize(lambda *args: function(*args), method=ShardParallel(**options))


def mlp_step() -> Any:
    return alpa.parallelize(train_step(build("mlp"), alpa.value_and_grad), method=ShardParallel())


# Arrays.


@pytest.mark.parametrize("make", [np.array, jnp.array], ids=["numpy", "jax"])
def test_arrays_of_the_driver_are_taken_and_arrays_of_the_mesh_given_back(mesh: Any, make: Any) -> None:
    w, x = weights_and_batch()
    result = on_mesh()(make(w), make(x))
    assert isinstance(result, DistributedArray)
    assert_equal_up_to_rounding(np.asarray(result), run_serially(serial_update, w, x))


def test_numbers_and_whole_numbers_are_taken_as_jax_takes_them(mesh: Any) -> None:
    def function(x: Any, factor: Any, number: Any) -> Any:
        return x * factor + number

    x, number = np.arange(16.0).reshape(8, 2), np.arange(2)
    parallel = alpa.parallelize(function, static_argnums=(), batch_argnums=(), method=ShardParallel())
    result = parallel(x, 1.5, number)
    assert np.asarray(result).dtype == np.float32
    np.testing.assert_array_equal(np.asarray(result), x * 1.5 + number)


def test_keys_are_taken_and_given_back_as_keys(mesh: Any) -> None:
    def function(x: Any, key: Any) -> Any:
        return x + jax.random.bits(key, (1, 16)) % 4, jax.random.split(key)[0]

    x, key = weights_and_batch()[1], jax.random.key(3)
    expected_x, expected_key = jax.jit(function)(x, key)
    parallel = alpa.parallelize(function, batch_argnums=(0,), donate_argnums=(), method=ShardParallel())
    found, next_key = parallel(x, key)
    assert_equal_up_to_rounding(np.asarray(found), np.asarray(expected_x))
    assert next_key.dtype == key.dtype
    np.testing.assert_array_equal(jax.random.key_data(next_key), jax.random.key_data(expected_key))
    _ = parallel(found, next_key)


def test_an_array_lies_on_the_hosts_as_its_sharding_says(mesh: Any) -> None:
    w, x = weights_and_batch()
    result = on_mesh()(w, x)
    everywhere = [(host, device) for host in range(2) for device in range(4)]
    parts = mesh.get_remote_buffers([result.remote_ref], [everywhere])[0]
    assert len(parts) == 8
    for part, index in zip(parts, result.indices, strict=True):
        np.testing.assert_array_equal(part, np.asarray(result)[index])


def test_waiting_for_an_array_gives_it_back(mesh: Any) -> None:
    w, x = weights_and_batch()
    result = on_mesh()(w, x)
    assert result.block_until_ready() is result
    assert jax.block_until_ready({"w": result})["w"] is result


def test_arrays_that_are_fetched_together_have_the_values_of_those_fetched_alone(mesh: Any) -> None:
    w, x = weights_and_batch()
    first, second = on_mesh()(w, x), on_mesh()(2 * w, x)
    alpa.prefetch([first, second])
    assert_equal_up_to_rounding(np.asarray(first), run_serially(serial_update, w, x))
    assert_equal_up_to_rounding(np.asarray(second), run_serially(serial_update, 2 * w, x))


def test_one_array_given_for_two_arguments_that_are_donated_is_used_twice(mesh: Any) -> None:
    w, x = weights_and_batch()

    def function(pair: Any, x: Any) -> Any:
        return {"a": pair["a"] + 1, "b": pair["b"] * jnp.mean(x)}

    parallel = alpa.parallelize(function, donate_argnums=(0,), method=ShardParallel())
    array = jnp.array(w)
    once = parallel({"a": array, "b": array}, x)
    on_hosts = once["a"]
    twice = parallel({"a": on_hosts, "b": on_hosts}, x)
    np.testing.assert_allclose(np.asarray(twice["b"]), (w + 1) * np.mean(x), rtol=1e-5)


# Methods that build on another function.


def test_a_created_state_lies_where_the_step_wants_it_and_the_step_equals_the_serial_one(mesh: Any) -> None:
    model = build("mlp")
    step = mlp_step()

    def values() -> Any:
        leaves, structure = jax.tree.flatten(model.state)
        return jax.tree.unflatten(structure, [jnp.full(leaf.shape, 0.01, leaf.dtype) for leaf in leaves])

    state = alpa.parallelize(values, method=CreateStateParallel(step, model.batch))()
    executable = step.get_last_executable()
    wanted = jax.tree.leaves(executable.get_input_placement_specs()[0])
    assert [leaf.sharding_spec for leaf in jax.tree.leaves(state)] == [spec.sharding_specs[0] for spec in wanted]
    actual = jax.tree.map(np.asarray, step(state, model.batch))
    assert step.get_last_executable() is executable
    assert_equal_up_to_rounding(actual, run_serially(train_step(model, jax.value_and_grad), values(), model.batch))


def test_a_following_function_takes_the_parameters_as_they_lie(mesh: Any) -> None:
    model = build("mlp")
    step = mlp_step()
    state, _, _ = step(jax.tree.map(np.array, model.state), model.batch)

    def evaluate(params: Any, batch: Any) -> jax.Array:
        return model.loss(params, model.state, batch)[0]

    follow = alpa.parallelize(evaluate, method=FollowParallel(step))
    result = follow(state.params, model.batch)
    params = jax.tree.map(np.asarray, state.params)
    assert_equal_up_to_rounding(np.asarray(result), run_serially(evaluate, params, model.batch))
    # Each device has the same part; the logical mesh that says so may be another one.
    actual = jax.tree.leaves(follow.get_last_executable().get_input_placement_specs()[0])
    for spec, param in zip(actual, jax.tree.leaves(state.params), strict=True):
        assert spec_to_indices(param.shape, spec.sharding_specs[0]) == param.indices


# Random numbers.


def test_a_seed_gives_the_numbers_that_it_gives_on_a_local_mesh(mesh: Any) -> None:
    def draw(x: Any) -> Any:
        return x + jax.random.uniform(jax.random.key(0), x.shape)

    x = np.zeros((8, 16), np.float32)
    local = alpa.LocalPhysicalDeviceMesh(jax.devices()[:8])
    drawn = []
    for devices in (mesh, local):
        parallel = on_mesh(draw, devices=devices)
        devices.set_runtime_random_seed(7)
        drawn.append([np.asarray(parallel(x)) for _ in range(2)])
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0][0], drawn[0][1])


# Loading data.


def test_a_data_loader_of_the_driver_gives_its_batches(mesh: Any) -> None:
    w, x = weights_and_batch()
    step = on_mesh()
    step(w, x)
    specs = step.get_last_executable().get_input_placement_specs()[1]
    batches = [x, x + 1, x + 2]
    loaded = list(alpa.DataLoader(iter(batches), specs))
    assert all(isinstance(batch, DistributedArray) for batch in loaded)
    np.testing.assert_array_equal([np.asarray(batch) for batch in loaded], batches)


def test_a_data_loader_of_the_hosts_loads_every_sample_once(mesh: Any) -> None:
    w, x = weights_and_batch()
    step = on_mesh(auto_sharding_option=alpa.AutoShardingOption(force_data_parallel=True))
    step(w, x)
    specs = step.get_last_executable().get_input_placement_specs()[1]

    def batches(start: int, end: int, batch_size: int) -> Iterator[tuple[np.ndarray]]:
        # By value: a host has no module of this name.
        for first in range(start, end, batch_size):
            yield (np.repeat(np.arange(first, first + batch_size, dtype=np.float32)[:, None], 16, axis=1),)

    loader = alpa.MeshDriverDataLoader(32, 96, batches, specs, prefetch_size=1)
    samples = [np.array(batch)[:, 0] for (batch,) in loader]
    assert len(samples) == 3
    np.testing.assert_array_equal(np.sort(np.concatenate(samples)), np.arange(96))


# Checkpoints.


@pytest.mark.parametrize("cached", [False, True], ids=["directly", "through_a_cache"])
def test_what_is_saved_is_restored_exactly_and_where_it_was(mesh: Any, tmp_path: Path, cached: bool) -> None:
    model = build("mlp")
    step = mlp_step()
    state, _, _ = step(jax.tree.map(np.array, model.state), model.batch)
    alpa.save_checkpoint(str(tmp_path / "saved"), state, 1, str(tmp_path / "cache") if cached else None)
    mesh.sync_move_workers()
    specs = step.get_last_executable().get_input_placement_specs()[0]
    restored = alpa.restore_checkpoint(str(tmp_path / "saved"), 1, specs)
    for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(restored), strict=True):
        assert isinstance(after, DistributedArray)
        assert after.sharding_spec == before.sharding_spec
        np.testing.assert_array_equal(np.asarray(after), np.asarray(before))


def test_bfloat16_is_restored_as_bfloat16(mesh: Any, tmp_path: Path) -> None:
    def function(x: Any) -> Any:
        return (x * 2).astype(jnp.bfloat16)

    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    parallel = alpa.parallelize(function, batch_argnums=(), method=ShardParallel())
    array = parallel(x)
    alpa.save_checkpoint(str(tmp_path), {"x": array}, 1)
    specs = {"x": parallel.get_last_executable().get_output_placement_specs()}
    restored = alpa.restore_checkpoint(str(tmp_path), 1, specs)["x"]
    assert restored.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(restored), np.asarray(array))


# What an executable tells.


def test_a_parallel_plan_says_how_many_hosts_it_is_for(mesh: Any) -> None:
    step = on_mesh()
    step(*weights_and_batch())
    plan = step.get_last_executable().get_parallel_plan()
    assert (plan.cluster_info.num_hosts, plan.cluster_info.num_devices_per_host) == (2, 4)


def test_an_executable_tells_its_program_its_memory_and_its_times(mesh: Any) -> None:
    step = on_mesh()
    w, x = weights_and_batch()
    for _ in range(3):
        np.asarray(step(w, x))
    executable = step.get_last_executable()
    assert "HloModule" in executable.get_hlo_text()
    assert executable.get_total_allocation_size() > w.nbytes
    assert len(executable.get_execution_time_costs()) == 3
    assert all(cost > 0 for cost in executable.profile_with_dummy_inputs())
    mesh.sync_workers()


# The hosts.


def test_each_host_has_the_devices_of_all_and_knows_its_own(mesh: Any) -> None:

    def look(backend: Any) -> Any:
        own = [device.process_index for device in backend.local_devices()]
        return backend.device_count(), own, ray.get_runtime_context().get_node_id()

    (all_first, own_first, node_first), (all_second, own_second, node_second) = call_on_hosts(mesh, look)
    assert (all_first, all_second) == (8, 8)
    assert (own_first, own_second) == ([0] * 4, [1] * 4)
    assert [node_first, node_second] == [host["NodeID"] for host in mesh.host_info]


def test_a_program_is_compiled_and_timed_by_a_function_called_on_the_hosts(mesh: Any) -> None:
    function = on_mesh()
    w, x = weights_and_batch()
    function(w, x)
    module = function.get_last_executable().hlo.get_module()

    def measure(backend: Any, module: Any) -> tuple[int, dict[str, int]]:
        from alpa_cfp.spmd.compile.executable import MeshExecutable

        executable = MeshExecutable(backend, module)
        run = executable.runner_with_dummy_inputs()
        run()
        run()
        return len(backend.devices()), executable.memory_bytes()

    first, second = call_on_hosts(mesh, measure, module)
    assert first == second
    assert first[0] == 8
    assert first[1]["arguments"] < w.nbytes + x.nbytes


# More than one mesh.


def test_a_mesh_beside_the_first_computes_on_its_own(mesh: Any) -> None:
    w, x = weights_and_batch()
    mesh.shutdown()  # its devices are to be shared
    cluster = get_global_cluster()
    meshes = [cluster.get_physical_mesh([0, 1], 2) for _ in range(2)]
    try:
        results = [on_mesh(devices=each)(w, x) for each in meshes]
        for result in results:
            assert_equal_up_to_rounding(np.asarray(result), run_serially(serial_update, w, x))
        assert results[0].device_mesh is not results[1].device_mesh
    finally:
        for each in meshes:
            each.shutdown()
