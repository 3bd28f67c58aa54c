"""Random numbers: a function of the seed, the call, the op and the element, on one device as on every mesh."""

import jax
import numpy as np
import pytest

from alpa_cfp.spmd.compile.executable import Client, MeshExecutable
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import PartitionedProgram
from alpa_cfp.spmd.partition.shardy import partition_with_shardy
from alpa_cfp.spmd.partition.xla import leave_to_xla
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from unit.alpa_cfp.spmd.helpers import MESHES, all_shardings, annotate, mesh_id

pytestmark = pytest.mark.slow

UNIFORM = ("UNIFORM", "0.0", "1.0")
NORMAL = ("NORMAL", "0.0", "1.0")


def drawing(shape: tuple[int, ...], element: str = "f32", *ops: tuple[str, str, str]) -> HloModule:
    """A program whose results are the numbers that `ops` (distribution, low or mean, high or deviation) draw."""
    result = f"tensor<{''.join(f'{size}x' for size in shape)}{element}>"
    dims = f"dense<[{', '.join(map(str, shape))}]>" if shape else "dense<>"
    lines = [f"%shape = stablehlo.constant {dims} : tensor<{len(shape)}xi64>"]
    for i, (distribution, a, b) in enumerate(ops):
        lines += [
            f"%a{i} = stablehlo.constant dense<{a}> : tensor<{element}>",
            f"%b{i} = stablehlo.constant dense<{b}> : tensor<{element}>",
            f"%r{i} = stablehlo.rng %a{i}, %b{i}, %shape, distribution = {distribution}"
            f" : (tensor<{element}>, tensor<{element}>, tensor<{len(shape)}xi64>) -> {result}",
        ]
    types, values = ", ".join([result] * len(ops)), ", ".join(f"%r{i}" for i in range(len(ops)))
    body = "\n".join(lines)
    text = f"func.func public @main() -> ({types}) {{\n{body}\nreturn {values} : {types}\n}}"
    return HloModule.from_stablehlo("draws", text)


def _draw(module: HloModule, program: PartitionedProgram, seed: int = 0, calls: int = 1) -> list[list[np.ndarray]]:
    module.partitioned = program
    executable = MeshExecutable(Client(jax.devices(), seed), module)
    results = [executable.execute_sharded_on_local_devices([]) for _ in range(calls)]
    for result in results[0]:  # devices that hold the same part agree
        for shard in result.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), np.asarray(result)[shard.index])
    return [[np.asarray(array) for array in call] for call in results]


def draw_on_one_device(module: HloModule, seed: int = 0, calls: int = 1) -> list[list[np.ndarray]]:
    annotate(module, LogicalMesh((1, 1)))
    return _draw(module, partition_with_shardy(module, ()), seed, calls)


@pytest.mark.parametrize("partitioner", ["shardy", "xla"])
@pytest.mark.parametrize("mesh", MESHES, ids=mesh_id)
def test_the_same_numbers_are_drawn_on_every_mesh_with_every_sharding(mesh, partitioner):
    ((wanted,),) = draw_on_one_device(drawing((8, 16), "f32", NORMAL), seed=3)
    shardings = all_shardings(mesh, (8, 16))[::3]
    for sharding in shardings if partitioner == "shardy" else shardings[-1:]:
        module = annotate(drawing((8, 16), "f32", NORMAL), mesh, None, [sharding])
        program = partition_with_shardy(module, ()) if partitioner == "shardy" else leave_to_xla(module, "asked for")
        ((found,),) = _draw(module, program, seed=3)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("element", ["f32", "bf16", "f16"])
def test_uniform_numbers_lie_between_their_bounds_and_have_the_moments_of_the_distribution(element):
    ((numbers,),) = draw_on_one_device(drawing((64, 256), element, ("UNIFORM", "-1.0", "3.0")))
    wide = numbers.astype(np.float64)
    assert wide.min() >= -1
    assert wide.max() <= 3
    # 16384 numbers: the mean is off by 4 / sqrt(12 * 16384) = 0.009 in one standard deviation.
    assert abs(wide.mean() - 1) < 0.045
    assert abs(wide.var() - 16 / 12) < 0.05


@pytest.mark.parametrize("element", ["f32", "bf16", "f16"])
def test_normal_numbers_have_the_moments_of_the_distribution(element):
    ((numbers,),) = draw_on_one_device(drawing((64, 256), element, ("NORMAL", "2.0", "3.0")))
    standard = (numbers.astype(np.float64) - 2) / 3
    assert np.isfinite(standard).all()
    assert abs(standard.mean()) < 0.04
    assert abs(standard.var() - 1) < 0.06
    assert abs((standard**4).mean() - 3) < 0.4
    assert abs((abs(standard) < 1).mean() - 0.6827) < 0.025


def test_float64_numbers_are_drawn_too():
    with jax.enable_x64(True):
        uniform, normal = draw_on_one_device(drawing((32, 64), "f64", UNIFORM, NORMAL))[0]
    assert uniform.dtype == normal.dtype == np.float64
    assert abs(uniform.mean() - 0.5) < 0.04
    assert abs(normal.var() - 1) < 0.15


@pytest.mark.parametrize(("element", "low", "high"), [("i32", -5, 7), ("ui32", 0, 3), ("i8", -100, 100)])
def test_integers_lie_between_their_bounds_and_reach_each_of_them(element, low, high):
    ((numbers,),) = draw_on_one_device(drawing((64, 64), element, ("UNIFORM", str(low), str(high))))
    assert set(np.unique(numbers)) == set(range(low, high))


def test_integers_of_64_bits_reach_both_ends_of_a_wide_range():
    with jax.enable_x64(True):
        ((numbers,),) = draw_on_one_device(drawing((1024,), "i64", ("UNIFORM", "0", str(2**40))))
    assert numbers.min() < 2**36
    assert 2**40 > numbers.max() > 2**40 - 2**36


def test_there_are_no_more_equal_numbers_than_chance_makes():
    ((numbers,),) = draw_on_one_device(drawing((16, 16, 16), "f32", UNIFORM))
    # 4096 numbers of 2**23: one pair is equal by chance; a row or column that repeats makes 16.
    assert numbers.size - np.unique(numbers).size <= 6


def test_the_next_call_draws_other_numbers():
    (first,), (second,) = draw_on_one_device(drawing((8, 8), "f32", UNIFORM), calls=2)
    assert not np.isin(first, second).any()


def test_two_ops_of_a_program_draw_different_numbers():
    first, second = draw_on_one_device(drawing((8, 8), "f32", UNIFORM, UNIFORM))[0]
    assert not np.isin(first, second).any()


def test_another_seed_draws_other_numbers_and_the_same_seed_the_same():
    runs = [draw_on_one_device(drawing((8, 8), "f32", UNIFORM), seed=seed)[0][0] for seed in (1, 2, 1)]
    assert not np.isin(runs[0], runs[1]).any()
    np.testing.assert_array_equal(runs[0], runs[2])


def test_setting_the_seed_starts_the_calls_anew():
    module = annotate(drawing((8, 8), "f32", UNIFORM), LogicalMesh((2, 2)))
    client = Client(jax.devices(), 5)
    executable = MeshExecutable(client, module)
    first = np.asarray(executable.execute_sharded_on_local_devices([])[0])
    assert not (np.asarray(executable.execute_sharded_on_local_devices([])[0]) == first).all()
    client.random_state.set_seed(5)
    np.testing.assert_array_equal(np.asarray(executable.execute_sharded_on_local_devices([])[0]), first)


def test_a_single_number_is_drawn():
    ((number,),) = draw_on_one_device(drawing((), "f32", UNIFORM))
    assert 0 <= number < 1
