"""Compiled programs: donated buffers are used again, memory adds up, gradients are summed once a step."""

import jax
import numpy as np
import pytest

from alpa_cfp.spmd.compile.executable import MeshExecutable, ZerosExecutable
from alpa_cfp.spmd.partition.shardy import partition_with_shardy
from alpa_cfp.spmd.partition.xla import leave_to_xla
from alpa_on_jax.xla_extension import Client, CompileOptions, XlaComputation, get_grad_sync_channel_ids
from unit.alpa_cfp.spmd.helpers import (
    MESH_2X4,
    annotate,
    assert_parts_equal,
    load,
    lower,
    place,
    split,
    values_of,
)

STATE, BATCH = np.ones((8, 16), np.float32), np.linspace(0, 1, 128, dtype=np.float32).reshape(8, 16)
SKIP = "testedXLA_SKIP_NCCL_COLLECTIVE_IDS"


def _update(state, batch):
    return state + batch, batch.sum()


def _executable(donated=(True, False), partitioner=partition_with_shardy):
    module = lower(_update, (STATE, BATCH), donated)
    annotate(module, MESH_2X4, [split(MESH_2X4, "y", "x")] * 2)
    program = partitioner(module, ()) if partitioner is partition_with_shardy else partitioner(module, "asked for")
    return load(module, program)


@pytest.mark.parametrize("partitioner", [partition_with_shardy, leave_to_xla])
def test_a_donated_buffer_is_used_for_the_result_and_gone_afterwards(partitioner):
    executable = _executable(partitioner=partitioner)
    state, batch = place(executable, (STATE, BATCH))
    buffers = {shard.data.unsafe_buffer_pointer() for shard in state.addressable_shards}
    results = executable.execute_sharded_on_local_devices([state, batch])
    assert state.is_deleted()
    assert not batch.is_deleted()
    assert {shard.data.unsafe_buffer_pointer() for shard in results[0].addressable_shards} == buffers
    assert_parts_equal(results, values_of(_update, (STATE, BATCH)))


def test_a_buffer_that_is_not_donated_stays():
    executable = _executable(donated=(False, False))
    arguments = place(executable, (STATE, BATCH))
    executable.execute_sharded_on_local_devices(arguments)
    assert not any(array.is_deleted() for array in arguments)


@pytest.mark.parametrize("partitioner", [partition_with_shardy, leave_to_xla])
def test_results_come_to_the_host_as_a_whole_split_ones_too(partitioner):
    executable = _executable(partitioner=partitioner)
    arguments = place(executable, (STATE, BATCH))
    state, total = jax.device_get(executable.execute_sharded_on_local_devices(arguments))
    np.testing.assert_array_equal(state, STATE + BATCH)
    np.testing.assert_allclose(total, BATCH.sum(), rtol=1e-6)


def test_memory_is_arguments_and_outputs_without_what_they_share_and_temporaries():
    part = STATE.nbytes // 8
    executable = _executable()
    sizes = executable.memory_bytes()
    assert sizes["arguments"] == 2 * part
    assert sizes["aliased"] == part
    assert part + 4 <= sizes["outputs"] <= part + 64  # the sum, and the tuple of results
    assert executable.total_allocation_size() == (
        sizes["arguments"] + sizes["outputs"] - sizes["aliased"] + sizes["temporaries"]
    )
    assert _executable(donated=(False, False)).total_allocation_size() >= executable.total_allocation_size() + part


def test_the_client_partitions_what_only_is_annotated():
    module = annotate(lower(_update, (STATE, BATCH)), MESH_2X4, [split(MESH_2X4, "x", ""), None])
    executable = Client(jax.devices()).compile(XlaComputation(module), CompileOptions(num_partitions=8))
    assert isinstance(executable, MeshExecutable)
    assert executable.program.partitioner == "xla"
    results = executable.execute_sharded_on_local_devices(place(executable, (STATE, BATCH)))
    assert_parts_equal(results, values_of(_update, (STATE, BATCH)))


def test_the_shapes_of_a_compiled_programs_parameters_are_those_of_one_device():
    (compiled,) = _executable().hlo_modules()
    assert [shape.dims for shape in compiled.parameter_shapes()] == [(2, 8), (2, 8)]


def test_a_program_can_be_timed_with_dummy_inputs_although_it_donates():
    run = _executable().runner_with_dummy_inputs()
    for _ in range(2):
        run()


def _accumulate():
    module = lower(lambda old, x: old + x.T @ x, (np.zeros((16, 16), np.float32), BATCH), (True, False))
    annotate(module, MESH_2X4, [split(MESH_2X4, "", ""), split(MESH_2X4, "xy", "")], [split(MESH_2X4, "", "")])
    return load(module, partition_with_shardy(module, (0,)))


def test_gradients_are_summed_when_alpa_does_not_say_to_skip_it(monkeypatch):
    monkeypatch.delenv(SKIP, raising=False)
    executable = _accumulate()
    results = executable.execute_sharded_on_local_devices(place(executable, (np.zeros((16, 16), np.float32), BATCH)))
    assert_parts_equal(results, [BATCH.T @ BATCH])


def test_gradients_stay_parts_while_alpa_says_to_skip_their_sum(monkeypatch):
    monkeypatch.setenv(SKIP, ".1.")
    executable = _accumulate()
    (parts,) = executable.execute_sharded_on_local_devices(place(executable, (np.zeros((16, 16), np.float32), BATCH)))
    total = sum(np.asarray(shard.data) for shard in parts.addressable_shards)
    np.testing.assert_allclose(total, BATCH.T @ BATCH, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(parts.addressable_shards[3].data), BATCH[3:4].T @ BATCH[3:4], rtol=1e-5)


def test_the_step_holds_no_all_reduce_and_the_sum_after_it_one():
    executable = _accumulate()
    assert " all-reduce(" not in executable.step_text()
    assert executable.grad_sync_text().count(" all-reduce(") == 1
    assert get_grad_sync_channel_ids(executable.hlo_modules()[0]) == ".1."


def test_a_program_without_gradients_has_no_sum_after_it():
    executable = _executable()
    assert executable.grad_sync_text() == ""
    assert get_grad_sync_channel_ids(executable.hlo_modules()[0]) == ""


def test_zeros_are_allocated_on_every_device():
    zeros = ZerosExecutable(tuple(jax.devices()), [(2, 3), (4,)], [np.float32, np.int8])
    first, second = zeros.execute_sharded_on_local_devices([])
    assert_parts_equal([first, second], [np.zeros((2, 3), np.float32), np.zeros(4, np.int8)])
    assert len(first.addressable_shards) == 8
