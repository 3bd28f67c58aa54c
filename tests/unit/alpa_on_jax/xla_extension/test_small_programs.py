"""The programs that alpa builds by hand: each computes what numpy does, and its results lie as the specs say."""

from collections.abc import Sequence
from typing import Any

import alpa
import jax
import numpy as np
import pytest
from alpa.mesh_executable import get_index_select_mesh_executable
from alpa.wrapped_hlo import HloStatus
from hypothesis import given
from hypothesis import strategies as st
from jax.interpreters.pxla import Chunked, NoSharding, Replicated, ShardedAxis, ShardingSpec, spec_to_indices
from jaxlib import xla_client as xc

from alpa_cfp.spmd.compile.executable import MeshExecutable
from alpa_on_jax.xla_extension import Client, CompileOptions, HloModule, run_spmd_partitioner, small_programs
from unit.alpa_cfp.spmd.helpers import assert_parts_equal, place

pytestmark = pytest.mark.slow

NUM_DEVICES = 8
SHAPE = (16, 24)
WHOLE = ShardingSpec([NoSharding(), NoSharding()], [Replicated(NUM_DEVICES)])
ROWS = ShardingSpec([Chunked([4]), NoSharding()], [ShardedAxis(0), Replicated(2)])
COLUMNS = ShardingSpec([NoSharding(), Chunked([8])], [ShardedAxis(0)])
BOTH_TURNED = ShardingSpec([Chunked([2]), Chunked([4])], [ShardedAxis(1), ShardedAxis(0)])


@st.composite
def sharding_specs(draw: st.DrawFn) -> ShardingSpec:
    """Any spec of a matrix of `SHAPE` over the devices: each mesh axis cuts a dim, or holds copies, in any order."""
    mesh_shape = draw(st.sampled_from([(8,), (2, 4), (4, 2), (2, 2, 2), (1, 8)]))
    dims = [draw(st.sampled_from([None, 0, 1])) for _ in mesh_shape]
    by_dim = [draw(st.permutations([axis for axis, dim in enumerate(dims) if dim == wanted])) for wanted in (0, 1)]
    mapping: list[Any] = [Replicated(size) for size in mesh_shape]
    for cut, axis in enumerate([*by_dim[0], *by_dim[1]]):
        mapping[axis] = ShardedAxis(cut)
    sharding = [Chunked([mesh_shape[axis] for axis in axes]) if axes else NoSharding() for axes in by_dim]
    return ShardingSpec(sharding, mapping)


def array_of(shape: Sequence[int] = SHAPE, dtype: Any = np.float32, first: int = 0) -> np.ndarray:
    return np.arange(first, first + np.prod(shape)).reshape(shape).astype(dtype)


def run(module: HloModule, *arguments: np.ndarray) -> list[jax.Array]:
    executable = MeshExecutable(Client(jax.devices()[:NUM_DEVICES]), module)
    return executable.run(place(executable, arguments))


def assert_lies_as(array: jax.Array, expected: np.ndarray, spec: ShardingSpec) -> None:
    """Each device holds what the spec says, of the expected array."""
    assert_parts_equal([array], [expected])
    parts = [np.asarray(part.data) for part in array.addressable_shards]
    for part, index in zip(parts, spec_to_indices(expected.shape, spec), strict=True):
        np.testing.assert_array_equal(part, expected[index])


@given(sharding_specs(), sharding_specs())
def test_an_array_of_any_spec_is_the_same_array_in_any_other(source: ShardingSpec, target: ShardingSpec) -> None:
    hlo = alpa.util.compile_allgather(SHAPE, np.dtype(np.float32), source, target, NUM_DEVICES)
    value = array_of()
    executable = MeshExecutable(Client(jax.devices()[:NUM_DEVICES]), hlo.get_module())
    (argument,) = place(executable, [value])
    assert_lies_as(argument, value, source)
    (result,) = executable.run([argument])
    assert_lies_as(result, value, target)


@given(sharding_specs(), st.integers(1, 4), st.sampled_from([0, 1]))
def test_joined_arrays_lie_as_each_of_them_did(spec: ShardingSpec, count: int, dim: int) -> None:
    aval = jax.core.ShapedArray(SHAPE, np.dtype(np.float32))
    hlo = alpa.util.compile_concatenate((NUM_DEVICES,), spec, count, dim, aval)
    values = [array_of(first=1000 * i) for i in range(count)]
    (result,) = run(hlo.get_module(), *values)
    assert_lies_as(result, np.concatenate(values, dim), spec)


@pytest.mark.parametrize("make", [alpa.util.compile_allgather, alpa.util.compile_concatenate])
def test_what_a_host_gets_is_partitioned_already(make: Any) -> None:
    if make is alpa.util.compile_allgather:
        hlo = make(SHAPE, np.dtype(np.float32), ROWS, WHOLE, NUM_DEVICES)
    else:
        hlo = make((NUM_DEVICES,), ROWS, 2, 0, jax.core.ShapedArray(SHAPE, np.dtype(np.float32)))
    assert hlo.status == HloStatus.SPMD_PARTITIONED
    assert hlo.get_module().partitioned is not None


@pytest.mark.parametrize("dtype", ["bfloat16", "bool", "int8", "float16", "complex64"])
def test_an_array_of_any_dtype_is_gathered(dtype: str) -> None:
    value = array_of(dtype=jax.numpy.dtype(dtype))
    hlo = alpa.util.compile_allgather(SHAPE, value.dtype, COLUMNS, WHOLE, NUM_DEVICES)
    (result,) = run(hlo.get_module(), value)
    assert_lies_as(result, value, WHOLE)


@pytest.mark.parametrize("dim", [0, 1])
def test_an_index_takes_from_each_array_along_the_dim(dim: int) -> None:
    specs, index = [ROWS, BOTH_TURNED], np.array([3, 3, 0, 15, 8, 1, 9, 2], np.int32)
    avals = [jax.core.ShapedArray(SHAPE, np.dtype(np.float32))] * 2
    hlo = alpa.util.get_index_select_computation(specs, dim, avals, xc.shape_from_pyval(index))
    assert hlo.is_sharding_annotated()
    values = [array_of(), array_of(first=7)]
    results = run(hlo.get_module(), *values, index)
    for result, value, spec in zip(results, values, specs, strict=True):
        assert_lies_as(result, np.take(value, index, dim), spec)


def test_alpa_selects_from_arrays_on_a_mesh() -> None:
    mesh = alpa.device_mesh.LocalPhysicalDeviceMesh(jax.devices()[:NUM_DEVICES])
    avals = [jax.core.ShapedArray(SHAPE, np.dtype(np.float32))]
    index = np.array([5, 2, 2, 0], np.int32)
    executable = get_index_select_mesh_executable(avals, [ROWS], index, 0, mesh, [False])
    (result,) = executable.launch_on_driver(array_of(), index)
    assert_lies_as(result, array_of()[index], ROWS)


def test_an_index_that_is_too_large_takes_the_last() -> None:
    array, index = jax.ShapeDtypeStruct(SHAPE, np.float32), jax.ShapeDtypeStruct((4,), np.int32)
    module = small_programs.index_select([array], index, 0, [WHOLE], "cpu")
    (result,) = run(module, array_of(), np.array([99, 0, 15, 16], np.int32))
    np.testing.assert_array_equal(np.asarray(result), array_of()[[15, 0, 15, 15]])


@pytest.mark.parametrize("num_devices", [1, 4, 8])
def test_a_mesh_with_nothing_to_do_gives_a_zero_on_each_of_its_devices(num_devices: int) -> None:
    module = alpa.util.compile_dummy_zero_constant().get_module()
    run_spmd_partitioner(module, CompileOptions(num_devices))
    (zero,) = run(module)
    assert (zero.shape, zero.dtype, len(zero.addressable_shards)) == ((), np.int32, num_devices)
    assert_parts_equal([zero], [np.zeros((), np.int32)])
