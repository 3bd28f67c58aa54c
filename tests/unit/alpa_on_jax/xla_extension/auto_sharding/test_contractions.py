"""Every strategy of a contraction, gather or scatter is a right way of computing it, and costs its all-reduces.

The devices of a mesh are simulated: each computes the op of its parts of the operands, as the strategy places them,
partial sums are added up along the axes that it names, and every device must have its part of the result.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_on_jax.xla_extension.auto_sharding.communication import Communication
from alpa_on_jax.xla_extension.auto_sharding.graph import DotDims
from alpa_on_jax.xla_extension.auto_sharding.specs import FIRST, NONE
from alpa_on_jax.xla_extension.auto_sharding.strategies import Strategy
from unit.alpa_on_jax.xla_extension.auto_sharding.programs import (
    MESH_SHAPES,
    assert_right,
    ilp_of,
    only,
    options,
    strategies_of,
)

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def _dot_of(function: Any, *operands: np.ndarray, mesh_shape: tuple[int, int], **changes: Any):
    ilp = ilp_of(function, *operands, chosen=options(mesh_shape, **changes))
    return ilp, only(ilp.graph, "dot_general")


def _local_dot(dims: DotDims):
    numbers = (((dims.lhs_contracting,), (dims.rhs_contracting,)), (dims.lhs_batch, dims.rhs_batch))

    def local(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        letters = iter("abcdefgh")
        left, right = [""] * lhs.ndim, [""] * rhs.ndim
        for i, j in zip(numbers[1][0] + numbers[0][0], numbers[1][1] + numbers[0][1], strict=True):
            left[i] = right[j] = next(letters)
        left[dims.lhs_free], right[dims.rhs_free] = "y", "z"
        batch = "".join(left[i] for i in dims.lhs_batch)
        return np.einsum(f"{''.join(left)},{''.join(right)}->{batch}yz", lhs, rhs)

    return local


@st.composite
def _dots(draw: st.DrawFn):
    """A canonical dot with dims in any order on each side, and options that add strategies."""
    batches = draw(st.integers(0, 2))
    sizes = [draw(st.sampled_from([2, 4, 5, 8])) for _ in range(batches)]
    sides = []
    contracted = draw(st.sampled_from([2, 4, 6, 8]))
    for _ in range(2):
        dims = [*enumerate(sizes), ("k", contracted), ("f", draw(st.sampled_from([1, 3, 4, 8])))]
        sides.append(draw(st.permutations(dims)))
    names = [[name for name, _ in side] for side in sides]
    arrays = [normal(*(size for _, size in side)) for side in sides]
    batch = tuple(tuple(side.index(i) for i in range(batches)) for side in names)
    numbers = (((names[0].index("k"),), (names[1].index("k"),)), batch)
    changes = {
        "allow_mixed_mesh_shape": draw(st.booleans()),
        "allow_recompute_heavy_op": draw(st.booleans()),
        "batch_matmul_always_split_batch": draw(st.booleans()),
    }
    return arrays, numbers, changes


@pytest.mark.parametrize("mesh_shape", MESH_SHAPES, ids=str)
@given(_dots())
def test_every_strategy_of_a_dot_computes_the_dot(mesh_shape, case):
    arrays, numbers, changes = case
    ilp, dot = _dot_of(lambda a, b: jax.lax.dot_general(a, b, numbers), *arrays, mesh_shape=mesh_shape, **changes)
    # Simplification may have exchanged the sides or transposed them: the operands are what the parameters become.
    operands = [_value_of(operand, dict(zip(ilp.graph.parameters, arrays, strict=True))) for operand in dot.operands]
    mesh = Communication(options(mesh_shape)).mesh
    for strategy in strategies_of(ilp, dot):
        assert_right(mesh, strategy, operands, _local_dot(dot.dot))


@pytest.mark.parametrize("mesh_shape", MESH_SHAPES, ids=str)
@given(_dots())
def test_no_strategy_of_a_dot_splits_a_dim_unevenly(mesh_shape, case):
    arrays, numbers, changes = case
    ilp, dot = _dot_of(lambda a, b: jax.lax.dot_general(a, b, numbers), *arrays, mesh_shape=mesh_shape, **changes)
    mesh = Communication(options(mesh_shape)).mesh
    for strategy in strategies_of(ilp, dot):
        for value, spec in zip((dot, *dot.operands), (strategy.spec, *strategy.operand_specs), strict=True):
            assert not mesh.uneven_axes(spec, value.shape)


def test_where_one_axis_divides_nothing_a_dot_is_split_along_the_other():
    ilp, dot = _dot_of(lambda x, w: x @ w, normal(8, 6), normal(6, 5), mesh_shape=(2, 4))
    strategies = strategies_of(ilp, dot)
    assert (FIRST, NONE) in {strategy.spec for strategy in strategies}
    assert all(strategy.compute_cost > 0 for strategy in strategies if "not @" in strategy.name)


def _value_of(instruction: Any, given_values: dict[Any, np.ndarray]) -> np.ndarray:
    if instruction in given_values:
        return given_values[instruction]
    (operand,) = instruction.operands
    value = _value_of(operand, given_values)
    return value.transpose(instruction.dims) if instruction.opcode == "transpose" else value.reshape(instruction.shape)


def _names(strategies: tuple[Strategy, ...]) -> list[str]:
    return [strategy.name for strategy in strategies]


def test_on_one_axis_a_dot_is_split_along_a_free_dim_or_the_contracting_one():
    ilp, dot = _dot_of(lambda x, w: x @ w, normal(8, 8), normal(8, 8), mesh_shape=(4, 1))
    specs = {(s.spec, *s.operand_specs, s.all_reduce_axes) for s in strategies_of(ilp, dot)}
    assert specs == {
        ((1, 0), (1, 0), (0, 0), ()),
        ((0, 1), (0, 0), (0, 1), ()),
        ((0, 0), (0, 1), (1, 0), (0,)),
    }


def test_a_dot_over_a_split_contracting_dim_costs_the_all_reduce_of_its_part_of_the_result():
    ilp, dot = _dot_of(lambda x, w: x @ w, normal(8, 4), normal(4, 8), mesh_shape=(2, 2))
    communication = Communication(options((2, 2)))
    for strategy in strategies_of(ilp, dot):
        part = 8 * 8 * 4 / communication.mesh.num_tiles(strategy.spec)
        expected = sum(communication.all_reduce(part, axis) for axis in strategy.all_reduce_axes)
        assert strategy.communication_cost == expected
        assert ("allreduce" in strategy.name) is bool(strategy.all_reduce_axes)


def test_mixed_mesh_shapes_add_dots_that_are_split_over_all_devices():
    arguments = normal(8, 8), normal(8, 8)
    without, _ = _dot_of(lambda x, w: x @ w, *arguments, mesh_shape=(2, 2))
    with_, _ = _dot_of(lambda x, w: x @ w, *arguments, mesh_shape=(2, 2), allow_mixed_mesh_shape=True)
    plain, mixed = (_names(strategies_of(ilp, only(ilp.graph, "dot_general"))) for ilp in (without, with_))
    assert mixed == [*plain, "Si = Si x R @ 0", "R = Sk x Sk @ 0 (allreduce @ 0)"]


def test_a_batched_dot_that_must_be_split_along_the_batch_has_no_strategy_without_it():
    ilp, dot = _dot_of(
        lambda x, y: jnp.einsum("bik,bkj->bij", x, y),
        normal(4, 4, 4),
        normal(4, 4, 4),
        mesh_shape=(2, 2),
        batch_matmul_always_split_batch=True,
    )
    assert all(strategy.spec[0] for strategy in strategies_of(ilp, dot))


NHWC = ("NHWC", "HWIO", "NHWC")


def _convolve(x: Any, kernel: Any, numbers: tuple[str, str, str] = NHWC, **groups: int) -> Any:
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers, **groups)


def _local_conv(numbers: tuple[str, str, str]):
    def local(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        # A part without a batch or without features is what XLA pads with zeros.
        if 0 in x.shape or 0 in kernel.shape:
            sizes = dict(zip(numbers[2], (0, 0, 0, 0), strict=True))
            sizes |= {"N": x.shape[numbers[0].index("N")], "C": kernel.shape[numbers[1].index("O")]}
            sizes |= {name: x.shape[numbers[0].index(name)] for name in "HW"}
            return np.zeros([sizes[name] for name in numbers[2]], np.float32)
        return np.asarray(_convolve(x, kernel, numbers))

    return local


@pytest.mark.parametrize("mesh_shape", MESH_SHAPES, ids=str)
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("numbers", [NHWC, ("NCHW", "OIHW", "NCHW"), ("NHWC", "OHWI", "NCHW")], ids=str)
def test_every_strategy_of_a_convolution_computes_the_convolution(mesh_shape, mixed, numbers):
    sizes = {"N": 4, "H": 3, "W": 3, "C": 4, "I": 4, "O": 8}
    x, kernel = (normal(*(sizes[name] for name in side)) for side in numbers[:2])
    if "H" in numbers[1]:
        kernel = kernel[tuple(slice(0, 2) if name in "HW" else slice(None) for name in numbers[1])]
    ilp = ilp_of(
        lambda x, k: _convolve(x, k, numbers), x, kernel, chosen=options(mesh_shape, allow_mixed_mesh_shape=mixed)
    )
    mesh = Communication(options(mesh_shape)).mesh
    strategies = strategies_of(ilp, only(ilp.graph, "convolution"))
    assert strategies
    for strategy in strategies:
        assert_right(mesh, strategy, (x, kernel), _local_conv(numbers))


@pytest.mark.parametrize("mesh_shape", MESH_SHAPES, ids=str)
def test_a_depthwise_convolution_is_split_along_its_channels_on_both_sides(mesh_shape):
    x, kernel = normal(4, 3, 3, 8), normal(2, 2, 1, 8)
    ilp = ilp_of(lambda x, k: _convolve(x, k, feature_group_count=8), x, kernel, chosen=options(mesh_shape))
    mesh = Communication(options(mesh_shape)).mesh
    depthwise = [s for s in strategies_of(ilp, only(ilp.graph, "convolution")) if s.name.startswith("SS = SS x RS")]
    assert len(depthwise) == 2

    def local(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        return np.asarray(_convolve(x, kernel, feature_group_count=x.shape[-1]))

    for strategy in depthwise:
        assert_right(mesh, strategy, (x, kernel), local)


@pytest.mark.parametrize("mesh_shape", [(4, 1), (1, 2)], ids=str)
def test_the_gradient_of_a_depthwise_kernel_is_split_along_its_channels(mesh_shape):
    x, out = normal(4, 3, 3, 8), normal(4, 3, 3, 8)

    def gradient(x: Any, out: Any, groups: int = 8) -> Any:
        return jax.lax.conv_general_dilated(
            x, out, (1, 1), "SAME", dimension_numbers=("CHWN", "IHWO", "HWNC"), batch_group_count=groups
        )

    ilp = ilp_of(gradient, x, out, chosen=options(mesh_shape))
    conv = only(ilp.graph, "convolution")
    mesh = Communication(options(mesh_shape)).mesh
    channels = mesh.tile_1d(4, conv.conv.out_feature)
    (strategy,) = (s for s in strategies_of(ilp, conv) if s.name.startswith("SS = SS x RS") and s.spec == channels)

    def local(x: np.ndarray, out: np.ndarray) -> np.ndarray:
        return np.asarray(gradient(x, out, x.shape[3]))

    assert_right(mesh, strategy, (x, out), local)


@pytest.mark.parametrize("mesh_shape", MESH_SHAPES, ids=str)
def test_every_strategy_of_a_gather_takes_the_rows(mesh_shape):
    x, indices = normal(6, 8), np.array([5, 0, 3], np.int32)
    ilp = ilp_of(
        lambda x, i: jax.lax.gather(
            x,
            i[:, None],
            jax.lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,)),
            (1, 8),
            mode="promise_in_bounds",
        ),
        x,
        indices,
        chosen=options(mesh_shape),
    )
    mesh = Communication(options(mesh_shape)).mesh
    strategies = strategies_of(ilp, only(ilp.graph, "gather"))
    assert {strategy.spec for strategy in strategies} == {(0, mesh.code(axis)) for axis in mesh.axes} | {(0, 0)}
    for strategy in strategies:
        assert_right(mesh, strategy, (x, indices[:, None]), lambda x, i: x[i[:, 0]])


@pytest.mark.parametrize("mesh_shape", MESH_SHAPES, ids=str)
def test_every_strategy_of_a_scatter_updates_the_rows(mesh_shape):
    x, indices, updates = normal(6, 8), np.array([5, 0, 5], np.int32), normal(3, 8)
    ilp = ilp_of(
        lambda x, i, u: x.at[i].add(u, mode="promise_in_bounds"), x, indices, updates, chosen=options(mesh_shape)
    )

    def local(x: np.ndarray, i: np.ndarray, u: np.ndarray) -> np.ndarray:
        result = x.copy()
        np.add.at(result, i[:, 0], u)
        return result

    mesh = Communication(options(mesh_shape)).mesh
    strategies = strategies_of(ilp, only(ilp.graph, "scatter"))
    assert any(spec != (NONE, NONE) for spec in (strategy.spec for strategy in strategies))
    for strategy in strategies:
        assert_right(mesh, strategy, (x, indices[:, None], updates), local)
