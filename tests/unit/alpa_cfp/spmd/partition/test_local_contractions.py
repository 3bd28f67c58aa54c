"""Reductions, dots and convolutions: partial sums are summed over just the devices that hold them."""

import random

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.alpa_cfp.spmd.helpers import (
    MESH_2X2,
    MESH_2X4,
    MESHES,
    Case,
    all_shardings,
    annotate,
    assert_partitioned_right,
    split,
)

pytestmark = pytest.mark.slow


def _dot_dims(draw: st.DrawFn) -> tuple[list[int], list[int], jax.lax.DotDimensionNumbers]:
    sizes = st.sampled_from([1, 2, 4, 8])
    batch, contracted = (draw(st.lists(sizes, max_size=2)) for _ in range(2))
    operands, places = [], []
    for free in (draw(st.lists(sizes, max_size=2)) for _ in range(2)):
        dims = [*batch, *contracted, *free]
        order = draw(st.permutations(range(len(dims))))
        operands.append([dims[i] for i in order])
        places.append([order.index(i) for i in range(len(dims))])
    b, c = len(batch), len(batch) + len(contracted)
    numbers = ((tuple(places[0][b:c]), tuple(places[1][b:c])), (tuple(places[0][:b]), tuple(places[1][:b])))
    return operands[0], operands[1], numbers


@given(dims=st.composite(_dot_dims)(), seed=st.integers(0, 2**16))
@settings(max_examples=15)
def test_a_dot_over_any_dims_is_right_however_each_value_is_sharded(dims, seed):
    left, right, numbers = dims
    rng = np.random.default_rng(seed)
    arguments = tuple(rng.standard_normal(shape).astype(np.float32) for shape in (left, right))
    case = Case(lambda a, b: jax.lax.dot_general(a, b, numbers), arguments)
    case.assert_right_with_any_shardings(random.Random(seed).choice(MESHES), seed)


@given(
    shape=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=4),
    kind=st.sampled_from(["sum", "max", "min", "all"]),
    data=st.data(),
)
@settings(max_examples=15)
def test_a_reduction_over_any_dims_is_right_however_each_value_is_sharded(shape, kind, data):
    dims = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    seed = data.draw(st.integers(0, 2**16))
    value = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    value = value > -1 if kind == "all" else value
    case = Case(lambda x: getattr(x, kind)(tuple(dims)), (value,))
    case.assert_right_with_any_shardings(random.Random(seed).choice(MESHES), seed)


LEFT, RIGHT = (np.random.default_rng(3).standard_normal(shape).astype(np.float32) for shape in ((4, 8), (8, 4)))
DOT = Case(lambda a, b: a @ b, (LEFT, RIGHT))


@pytest.mark.parametrize("left", all_shardings(MESH_2X2, LEFT.shape), ids=lambda s: s.to_sdy().split("@mesh, ")[1])
def test_a_dot_is_right_for_every_pair_of_its_operands_shardings(left):
    for right in all_shardings(MESH_2X2, RIGHT.shape):
        module = annotate(DOT.module(), MESH_2X2, [left, right])
        assert_partitioned_right(module, DOT.arguments, DOT.expected())


@pytest.mark.parametrize(
    ("left", "right", "kinds"),
    [
        (("", ""), ("", "y"), []),  # columns of the weight: each device has its columns of the result
        (("", "y"), ("y", ""), ["all-reduce"]),  # rows of the weight: each device has a partial sum
        (("x", ""), ("", "y"), []),
        (("x", "y"), ("y", ""), ["all-reduce"]),
    ],
)
def test_a_dot_communicates_only_to_sum_what_is_partial(left, right, kinds):
    shardings = [split(MESH_2X2, *left), split(MESH_2X2, *right)]
    program = assert_partitioned_right(annotate(DOT.module(), MESH_2X2, shardings), DOT.arguments, DOT.expected())
    assert [collective.kind for collective in program.collectives] == kinds


def test_a_maximum_over_devices_is_not_a_sum():
    # Shardy's own conversion to local programs sums here.
    case = Case(lambda x: x.max(), (np.arange(16, dtype=np.float32) - 100,))
    module = annotate(case.module(), MESH_2X4, [split(MESH_2X4, "xy")])
    program = assert_partitioned_right(module, case.arguments, case.expected())
    assert [collective.kind for collective in program.collectives] == ["all-reduce"]


def test_a_sum_that_starts_from_a_value_counts_it_once():
    # XLA's partitioner counts it once on every device.
    case = Case(lambda x: jax.lax.reduce(x, np.float32(7), jax.lax.add, (0,)), (np.ones(16, np.float32),))
    module = annotate(case.module(), MESH_2X4, [split(MESH_2X4, "xy")])
    assert_partitioned_right(module, case.arguments, case.expected())


def test_an_argmax_along_a_split_dim_exchanges_one_candidate_a_device():
    values = np.random.default_rng(0).normal(size=(4, 16)).astype(np.float32)
    case = Case(lambda x: jax.numpy.argmax(x, 1), (values,))
    module = annotate(case.module(), MESH_2X4, [split(MESH_2X4, "", "y")])
    program = assert_partitioned_right(module, case.arguments, case.expected())
    assert [(collective.kind, collective.size_bytes) for collective in program.collectives] == [("all-gather", 16)] * 2


def test_an_argmax_of_equal_numbers_is_the_first_of_all_devices():
    case = Case(lambda x: jax.numpy.argmax(x, 0), (np.zeros((16, 2), np.float32),))
    module = annotate(case.module(), MESH_2X4, [split(MESH_2X4, "yx", "")])
    assert_partitioned_right(module, case.arguments, case.expected())
