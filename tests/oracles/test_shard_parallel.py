"""What Alpa decides for whole training steps on 4 devices, as Alpa's own `shard_parallel` tests expect it."""

from collections.abc import Callable
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa.testing import get_bert_layer_train_state_and_step, get_mlp_train_state_and_step
from alpa.util import count_communication_primitives
from jax.interpreters import pxla

from alpa_on_jax.errors import MeshShapeError
from oracles.shard_parallel_cases import BASIC, CASES
from oracles.shard_parallel_compile import (
    KINDS,
    WHOLE,
    Case,
    Partition,
    compile_case,
    parameters_under,
    partition_of,
    partitions_by_rank,
)

SERIAL_TOLERANCE = 5e-4
AlpaMesh = Any


def line_of(devices: int) -> AlpaMesh:
    return mesh_of((devices, 1))


def mesh_of(shape: tuple[int, int]) -> AlpaMesh:
    devices = jax.local_devices()[: shape[0] * shape[1]]
    return alpa.LocalPhysicalDeviceMesh(devices).get_logical_mesh(shape)


def executable_of(function: Callable[..., Any], mesh: AlpaMesh, *arguments: Any) -> Any:
    """Alpa's executable of `function` for arguments of these shapes and dtypes, compiled and not run."""
    return alpa.parallelize(function, method=alpa.ShardParallel(devices=mesh)).get_executable(*arguments)


def floats(*dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, jnp.float32)


@pytest.mark.parametrize("case", [case for case in CASES if case.objective is not None], ids=str)
def test_the_objective_of_the_ilp_is_the_stated_one(case: Case) -> None:
    expected = case.objective(case.program()) if callable(case.objective) else case.objective
    assert compile_case(case).objective == pytest.approx(expected, rel=case.objective_tolerance)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_program_of_one_device_has_the_stated_collectives(case: Case) -> None:
    compiled = compile_case(case)
    assert compiled.partitioner == "shardy"
    found = compiled.partitioned
    assert set(found) <= set(KINDS)
    wrong = {kind: found[kind] for kind in KINDS if found[kind] not in case.counts.get(kind, (0,))}
    assert not wrong, f"{dict(found)} instead of {case.counts}"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_compiling_leaves_the_collectives_as_they_are(case: Case) -> None:
    compiled = compile_case(case)
    assert compiled.compiled == compiled.all_partitioned


@pytest.mark.parametrize("case", [case for case in CASES if case.partitions], ids=str)
def test_weights_are_partitioned_as_stated(case: Case) -> None:
    compiled = compile_case(case)
    for keys, expected in case.partitions:
        found = parameters_under(compiled, keys)
        assert found, keys
        assert set(found) == {expected}, keys


@pytest.mark.parametrize("case", [case for case in CASES if case.iotas], ids=str)
def test_one_hot_labels_are_split_like_the_logits(case: Case) -> None:
    found = compile_case(case).iotas
    assert case.iotas <= found
    assert (4, 4, 4096) not in found


@pytest.mark.parametrize("case", [case for case in CASES if case.whole_parameters], ids=str)
def test_data_parallel_keeps_all_parameters_whole(case: Case) -> None:
    compiled = compile_case(case)
    for rank, partition in partitions_by_rank(compiled.state.params, compiled.shapes.params):
        assert partition == Partition((1,) * rank, 4)


@pytest.mark.parametrize("case", [case for case in CASES if case.split], ids=str)
def test_zero_and_reduce_scatter_split_the_state(case: Case) -> None:
    compiled = compile_case(case)
    leaves = partitions_by_rank(compiled.state.opt_state, compiled.shapes.opt_state)
    if case.split == "matrices":
        leaves += partitions_by_rank(compiled.state.params, compiled.shapes.params)
    least_rank = 1 if case.split == "optimizer" else 2
    most_replicas = 1 if case.split == "optimizer matrices" else 2
    whole = [p for rank, p in leaves if rank >= least_rank and p.replicas > most_replicas]
    assert len(whole) <= case.may_be_whole, whole


@pytest.mark.parametrize("case", BASIC, ids=str)
def test_dropout_and_gather_have_a_strategy_of_finite_cost(case: Case) -> None:
    assert compile_case(case).objective < 1e6


def test_an_argmax_along_a_dim_that_is_whole_costs_nothing() -> None:
    executable = executable_of(lambda a: jnp.argmax(a, axis=0), line_of(4), floats(144, 144))
    assert executable.auto_sharding_objective == pytest.approx(0, abs=1e-6)
    assert partition_of(executable.input_sharding_specs[0]) == Partition((1, 4), 1)


def test_a_reshape_to_dims_that_the_devices_do_not_divide_costs_nothing() -> None:
    executable = executable_of(lambda a: a.reshape(8, 18), line_of(4), floats(144))
    assert executable.auto_sharding_objective == pytest.approx(0, abs=1e-6)


def test_a_vector_times_a_matrix_is_split_by_columns() -> None:
    executable = executable_of(jnp.matmul, line_of(4), floats(128), floats(128, 256))
    assert partition_of(executable.input_sharding_specs[1]) == Partition((1, 4), 1)


def test_a_donated_array_is_split_and_its_buffer_reused() -> None:
    add_one = alpa.parallelize(
        lambda x: x + 1, donate_argnums=(0,), method=alpa.ShardParallel(devices=jax.local_devices()[:4])
    )
    given = jnp.ones((128, 128))
    result = add_one(given)
    assert partition_of(result.sharding_spec) in (Partition((1, 4), 1), Partition((4, 1), 1))
    assert "input_output_alias={ {}: (0" in add_one.get_last_executable().get_hlo_text()


def test_a_mesh_of_one_device_computes_the_same() -> None:
    add_one = alpa.parallelize(
        lambda x: x + 1, donate_argnums=(), method=alpa.ShardParallel(devices=jax.local_devices()[:1])
    )
    np.testing.assert_array_equal(add_one(jnp.ones((128, 128))), np.full((128, 128), 2))


def test_the_weights_of_a_new_model_are_split_and_its_step_number_whole() -> None:
    def initialise(key: jax.Array) -> tuple[jax.Array, list[jax.Array], list[jax.Array]]:
        weights = [jax.random.normal(k, (16, 16)) for k in jax.random.split(key)]
        return jnp.zeros((), jnp.int32), weights, [jnp.zeros_like(weight) for weight in weights]

    mesh = alpa.LocalPhysicalDeviceMesh(jax.local_devices()[:4])
    executable = executable_of(initialise, mesh, jax.ShapeDtypeStruct((2,), jnp.uint32))
    step_number, *weights = executable.output_sharding_specs
    assert partition_of(step_number) == Partition((), 4)
    assert WHOLE not in map(partition_of, weights)


@pytest.mark.parametrize(
    ("shape", "parts", "split_dims"),
    [((4, 1), 4, 1), ((8, 1), 8, 1), ((2, 2), 4, 2)],
    ids=["4_devices", "8_devices", "2x2_devices"],
)
def test_the_result_of_a_dot_is_tiled_over_all_devices_as_by_xlas_pass(
    shape: tuple[int, int], parts: int, split_dims: int
) -> None:
    executable = executable_of(jnp.matmul, mesh_of(shape), floats(32, 64), floats(64, 128))
    (result,) = executable.output_sharding_specs
    partition = partition_of(result)
    assert np.prod(partition.chunks) == parts
    assert sum(chunks > 1 for chunks in partition.chunks) == split_dims


@pytest.mark.parametrize("shape", [(4, 2), (3, 1), (0, 4), (-2, -2)], ids=str)
def test_a_logical_mesh_that_the_devices_do_not_form_is_an_error(shape: tuple[int, int]) -> None:
    physical_mesh = alpa.LocalPhysicalDeviceMesh(jax.local_devices()[:4])
    with pytest.raises(MeshShapeError):
        physical_mesh.get_logical_mesh(shape)


ACCUMULATIONS = {
    "data_parallel": ((1, 4), False),
    "2d": ((2, 2), False),
    "reduce_scatter": ((1, 4), True),
}


@pytest.mark.parametrize(("mesh", "scatter"), ACCUMULATIONS.values(), ids=ACCUMULATIONS)
def test_accumulated_gradients_are_summed_over_devices_by_the_accumulate_module(
    mesh: tuple[int, int], *, scatter: bool
) -> None:
    state, batch, step = get_mlp_train_state_and_step(batch_size=256, hidden_size=16, num_layers=2)
    expected = step(state, batch)[0]
    option = alpa.AutoShardingOption(allow_all_to_all=False, prefer_reduce_scatter=scatter)
    method = alpa.ShardParallel(devices=mesh_of(mesh), num_micro_batches=2, auto_sharding_option=option)
    parallel: Any = alpa.parallelize(step, method=method)
    actual = parallel(state, batch)[0]
    for wanted, got in zip(jax.tree.leaves(expected.params), jax.tree.leaves(actual.params), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=SERIAL_TOLERANCE, atol=SERIAL_TOLERANCE)
    _, accumulate, apply = parallel.get_last_executable().get_hlo_text().split("HloModule")
    total, reduced, _, scattered, _ = count_communication_primitives(accumulate)
    applied = count_communication_primitives(apply)
    if scatter:
        assert total == reduced + scattered == 1
        assert applied == (1, 0, 1, 0, 0)
    else:
        assert total == reduced
        assert total == 1 or mesh == (2, 2)
        assert applied == (0, 0, 0, 0, 0)
        assert parallel.get_last_executable().grad_sync_channel_ids.count(".") == 2


def test_two_bert_layers_on_all_devices_equal_the_serial_run() -> None:
    state, batch, step = get_bert_layer_train_state_and_step(
        batch_size=16,
        seq_len=8,
        num_layers=2,
        hidden_size=256,
        num_heads=8,
        clip_by_global_norm=False,
        use_dynamic_scale=False,
        add_manual_pipeline_marker=False,
    )
    expected = step(state, batch)[0]
    actual = alpa.parallelize(step, method=alpa.ShardParallel(devices=jax.local_devices()[:4]))(state, batch)[0]
    for wanted, got in zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=SERIAL_TOLERANCE, atol=SERIAL_TOLERANCE)


def test_what_is_compiled_is_what_the_arrays_of_the_new_state_are() -> None:
    """The other tests read specs of executables; this one reads those of the arrays themselves."""
    state, batch, step = get_mlp_train_state_and_step(batch_size=256, hidden_size=16, num_layers=2)
    parallel: Any = alpa.parallelize(step, donate_argnums=(), method=alpa.Zero2Parallel(devices=line_of(4)))
    leaves = jax.tree.leaves(parallel(state, batch))
    specs = parallel.get_last_executable().output_sharding_specs
    assert any(isinstance(mapping, pxla.ShardedAxis) for spec in specs for mapping in spec.mesh_mapping)
    for leaf, spec in zip(leaves, specs, strict=True):
        # An array names the mesh of whatever put the same parts on the same devices first.
        assert partition_of(leaf.sharding_spec) == partition_of(spec)
        assert leaf.sharding.shard_shape(leaf.shape) == tuple(
            size // chunks for size, chunks in zip(leaf.shape, partition_of(spec).chunks, strict=True)
        )
