"""What a local mesh gives besides results: random numbers, plans, checkpoints, data loading, texts and files.

Each is held against the serial run, or against what the same program gives when its plan or state has been on disk.
"""

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa import AutoShardingOption, DataLoader, ManualShardingOption, ShardParallel, plan_to_method
from alpa.device_mesh import get_global_physical_mesh, set_global_physical_mesh
from alpa.testing import HloParser
from alpa.util import count_communication_primitives
from flax import linen as nn
from jax.sharding import PartitionSpec

from alpa_cfp_bench.workloads.meshes import logical_mesh
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.sizes import MESH_AXES
from integration.parallel import Case, parallel_method
from integration.serial import assert_equal_up_to_rounding, serial_steps

pytestmark = pytest.mark.slow

NO_SOLVER = AutoShardingOption(enable_auto_sharding=False)
DROP_RATE = 0.25
with_and_without_micro_batches = pytest.mark.parametrize("num_micro_batches", [None, 2])


def parallel_step(num_micro_batches: int | None = None, mesh: str = "2x4") -> Any:
    """The MLP's training step, sharded as Megatron does."""
    method = parallel_method(Case("mlp", mesh, "megatron", num_micro_batches))
    return alpa.parallelize(train_step(build("mlp"), alpa.value_and_grad), method=method)


def fresh_state() -> Any:
    """The MLP's state in arrays of its own, which may be donated."""
    return jax.tree.map(jnp.copy, build("mlp").state)


def aligned(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Zeros at an address that is a multiple of 64."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)
    first = -memory.ctypes.data % 64
    return memory[first : first + size].view(dtype).reshape(shape)


# Random numbers.


def dropout_mask(mesh: str, spec: PartitionSpec) -> Any:
    """A parallelized function that gives what flax's dropout leaves of ones, sharded by `spec` on `mesh`."""
    method = ShardParallel(
        devices=logical_mesh(mesh),
        auto_sharding_option=NO_SOLVER,
        manual_sharding_option=ManualShardingOption(MESH_AXES, in_axis_resources=spec, out_axis_resources=spec),
    )

    def drop(x: jax.Array) -> Any:
        return nn.Dropout(DROP_RATE).apply({}, x, deterministic=False, rngs={"dropout": jax.random.PRNGKey(0)})

    return alpa.parallelize(drop, method=method, batch_argnums=(), donate_argnums=())


def drawn_with_seed(seed: int, mesh: str, spec: PartitionSpec) -> np.ndarray:
    """The first mask after seeding with `seed`."""
    logical_mesh(mesh).physical_mesh.set_runtime_random_seed(seed)
    return np.asarray(dropout_mask(mesh, spec)(jnp.ones((64, 64))))


@pytest.mark.parametrize("mesh", ["1x8", "8x1", "2x2"])
def test_a_seed_gives_the_same_dropout_mask_on_every_mesh_and_sharding(mesh: str) -> None:
    expected = drawn_with_seed(7, "1x1", PartitionSpec())
    for spec in (PartitionSpec(), PartitionSpec("data", "model"), PartitionSpec(None, MESH_AXES)):
        np.testing.assert_array_equal(drawn_with_seed(7, mesh, spec), expected)


def test_two_calls_and_two_seeds_give_other_dropout_masks() -> None:
    drop = dropout_mask("2x4", PartitionSpec("data", "model"))
    first, second = np.asarray(drop(jnp.ones((64, 64)))), np.asarray(drop(jnp.ones((64, 64))))
    assert not np.array_equal(first, second)
    spec = PartitionSpec("data")
    assert not np.array_equal(drawn_with_seed(1, "2x4", spec), drawn_with_seed(2, "2x4", spec))


def test_dropout_leaves_the_expected_share_scaled() -> None:
    mask = drawn_with_seed(3, "2x4", PartitionSpec("data", "model"))
    np.testing.assert_allclose(np.unique(mask), [0, 1 / (1 - DROP_RATE)], rtol=1e-6)
    # 4096 draws: the share is within 4 standard deviations (0.0068 each).
    assert abs(np.mean(mask == 0) - DROP_RATE) < 4 * 0.0068


def test_alpa_set_seed_makes_a_program_draw_the_same_numbers_again() -> None:
    alpa.init(cluster="local")
    try:
        method = ShardParallel(auto_sharding_option=NO_SOLVER)
        draw = alpa.parallelize(
            lambda: jax.random.normal(jax.random.PRNGKey(0), (64,)), method=method, batch_argnums=()
        )
        alpa.set_seed(10)
        first, other = np.asarray(draw()), np.asarray(draw())
        alpa.set_seed(10)
        np.testing.assert_array_equal(np.asarray(draw()), first)
        assert not np.array_equal(first, other)
    finally:
        alpa.shutdown()


# Plans.


@with_and_without_micro_batches
def test_a_plan_survives_pickling_and_says_where_the_arguments_lie(num_micro_batches: int | None) -> None:
    executable = parallel_step(num_micro_batches).get_executable(fresh_state(), build("mlp").batch)
    plan = executable.get_parallel_plan()
    loaded = pickle.loads(pickle.dumps(plan))
    assert loaded.num_micro_batches == num_micro_batches
    # Field by field: with jax 0.11.2 an abstract value that has been pickled does not equal the one before.
    wanted = jax.tree.leaves(executable.get_input_placement_specs())
    for got, spec in zip(jax.tree.leaves(loaded.input_placement_specs), wanted, strict=True):
        assert (got.mesh_ids, got.sharding_specs) == (spec.mesh_ids, spec.sharding_specs)
        assert (got.aval.shape, got.aval.dtype) == (spec.aval.shape, spec.aval.dtype)


@with_and_without_micro_batches
def test_a_method_made_from_a_loaded_plan_gives_the_serial_result(num_micro_batches: int | None) -> None:
    # A plan of 0.2.3 keeps the solver's options and the micro-batches, and not manual shardings.
    model = build("mlp")
    executable = parallel_step(num_micro_batches).get_executable(fresh_state(), model.batch)
    method = plan_to_method(pickle.loads(pickle.dumps(executable.get_parallel_plan())))
    method.devices = logical_mesh("2x4")
    again: Any = alpa.parallelize(train_step(model, alpa.value_and_grad), method=method)
    state, _, _ = again(fresh_state(), model.batch)
    expected = serial_steps(model, num_micro_batches, 1)[0].state
    assert_equal_up_to_rounding(jax.tree.map(np.asarray, state), expected)
    assert again.get_last_executable().get_parallel_plan().num_micro_batches == num_micro_batches


# Checkpoints and data.


@pytest.fixture
def global_mesh() -> Any:
    """The 2x4 mesh as alpa's global one, which checkpoints and data loaders ask for."""
    mesh = logical_mesh("2x4").physical_mesh
    before = get_global_physical_mesh()
    set_global_physical_mesh(mesh)
    yield mesh
    set_global_physical_mesh(before)


def test_a_restored_sharded_state_continues_as_the_one_that_was_saved(tmp_path: Path, global_mesh: Any) -> None:
    model, step = build("mlp"), parallel_step()
    state, _, _ = step(fresh_state(), model.batch)
    saved = jax.tree.map(np.array, state)
    alpa.save_checkpoint(str(tmp_path), state, 1)
    placement = step.get_last_executable().get_input_placement_specs()[0]
    restored = alpa.restore_checkpoint(str(tmp_path), 1, placement)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, restored), saved)
    for got, wanted in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        assert got.sharding == wanted.sharding
    continued, _, _ = step(restored, model.batch)
    assert_equal_up_to_rounding(jax.tree.map(np.asarray, continued), serial_steps(model, None, 2)[1].state)


def test_a_state_that_holds_python_numbers_is_restored(tmp_path: Path, global_mesh: Any) -> None:
    # flax's own step number, before the first step.
    state, step = fresh_state().replace(step=0), parallel_step()
    placement = step.get_executable(state, build("mlp").batch).get_input_placement_specs()[0]
    alpa.save_checkpoint(str(tmp_path), state, 0)
    restored = alpa.restore_checkpoint(str(tmp_path), 0, placement)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, restored), jax.tree.map(np.asarray, state))


def test_bfloat16_arrays_are_restored_bit_for_bit(tmp_path: Path, global_mesh: Any) -> None:
    values = jnp.arange(64, dtype=jnp.bfloat16).reshape(8, 8) / 7
    manual = ManualShardingOption(MESH_AXES, in_axis_resources=PartitionSpec("data", "model"))
    method = ShardParallel(devices=logical_mesh("2x4"), auto_sharding_option=NO_SOLVER, manual_sharding_option=manual)
    negate = alpa.parallelize(lambda x: -x, method=method, batch_argnums=(), donate_argnums=())
    sharded = negate(values)
    alpa.save_checkpoint(str(tmp_path), {"x": sharded}, 3)
    (placement,) = negate.get_last_executable().get_input_placement_specs()
    restored = alpa.restore_checkpoint(str(tmp_path), 3, {"x": placement})["x"]
    assert restored.dtype == jnp.bfloat16
    assert {shard.data.shape for shard in restored.addressable_shards} == {(4, 2)}
    np.testing.assert_array_equal(np.asarray(restored), np.asarray(-values))


@pytest.mark.parametrize("prefetch_size", [0, 1, 2])
def test_a_data_loader_gives_every_batch_in_order_as_the_step_wants_it(prefetch_size: int, global_mesh: Any) -> None:
    step = parallel_step()
    batch = {name: np.asarray(array) for name, array in build("mlp").batch.items()}
    placement = step.get_executable(fresh_state(), batch).get_input_placement_specs()[1]
    batches = [{name: array + number for name, array in batch.items()} for number in range(4)]
    loaded = list(DataLoader(iter(batches), placement, prefetch_size=prefetch_size))
    assert len(loaded) == 4
    for got, wanted in zip(loaded, batches, strict=True):
        jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, got), wanted)
        assert {shard.data.shape[0] for shard in got["x"].addressable_shards} == {len(batch["x"]) // 2}


@pytest.mark.parametrize("prefetch_size", [0, 2])
def test_a_data_loader_may_read_each_batch_into_the_same_memory(prefetch_size: int, global_mesh: Any) -> None:
    step = parallel_step()
    batch = {name: np.asarray(array) for name, array in build("mlp").batch.items()}
    placement = step.get_executable(fresh_state(), batch).get_input_placement_specs()[1]
    # So aligned that JAX takes the memory itself.
    memory = {name: aligned(array.shape, array.dtype) for name, array in batch.items()}

    def batches() -> Iterator[dict[str, np.ndarray]]:
        for number in range(3):
            for name in memory:
                memory[name][...] = number
            yield memory

    loaded = list(DataLoader(batches(), placement, prefetch_size=prefetch_size))
    assert [float(np.asarray(got["x"]).max()) for got in loaded] == [0, 1, 2]


# Texts and files.


def test_the_hlo_text_holds_the_parts_of_the_arguments_and_the_communication() -> None:
    manual = ManualShardingOption(
        MESH_AXES, in_axis_resources=(PartitionSpec(None, "model"), PartitionSpec("data", "model"))
    )
    method = ShardParallel(devices=logical_mesh("2x4"), auto_sharding_option=NO_SOLVER, manual_sharding_option=manual)
    product = alpa.parallelize(lambda x, w: jnp.sum(x @ w.T), method=method, donate_argnums=())
    text = product.get_executable(jnp.ones((32, 16)), jnp.ones((8, 16))).get_hlo_text()
    assert text.startswith("HloModule")
    parameters = HloParser.get_param_line(text)
    assert HloParser.parse_param_shapes(parameters) == ("f32[32,4]", "f32[4,4]")
    total, all_reduces, _, _, _ = count_communication_primitives(text)
    assert total == all_reduces > 0


def test_with_micro_batches_the_hlo_text_holds_both_programs() -> None:
    text = parallel_step(2).get_executable(fresh_state(), build("mlp").batch).get_hlo_text()
    _, accumulate, apply = text.split("HloModule")
    assert "accumulate_grad" in accumulate.splitlines()[0]
    assert "apply_grad" in apply.splitlines()[0]
    assert count_communication_primitives(apply)[0] == 0


@with_and_without_micro_batches
def test_dump_debug_info_writes_the_texts_and_the_placements(num_micro_batches: int | None, tmp_path: Path) -> None:
    executable = parallel_step(num_micro_batches).get_executable(fresh_state(), build("mlp").batch)
    executable.dump_debug_info(str(tmp_path))
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written["step.hlo"] == executable.get_hlo_text()
    assert float(written["step.mem_usage.txt"].split()[1]) >= 0
    assert written["step_input_placement_specs.txt"] == str(executable.get_input_placement_specs())
    assert written["step_output_placement_specs.txt"] == str(executable.get_output_placement_specs())
    assert "ShardingSpec" in written["step_input_placement_specs.txt"]


def test_the_allocation_of_a_program_covers_the_parts_of_its_arguments() -> None:
    model = build("mlp")
    step = parallel_step()
    state, _, _ = step(fresh_state(), model.batch)
    device = jax.devices()[0]
    held = sum(
        shard.data.nbytes
        for leaf in jax.tree.leaves(state)
        for shard in leaf.addressable_shards
        if shard.device == device
    )
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(model.state))
    size = step.get_last_executable().get_total_allocation_size()
    assert held < size < 8 * whole
