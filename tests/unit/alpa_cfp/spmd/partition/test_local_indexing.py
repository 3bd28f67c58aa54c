"""Gather and scatter: lookups and updates in split tables, also by indices outside of them."""

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
from unit.alpa_cfp.spmd.partition.op_cases import INDEXING, SPLIT_UPDATES, raw_take, scatter

pytestmark = pytest.mark.slow

EMBEDDING = INDEXING["lookup's gradient, numbers outside"]
TABLE, TOKENS = EMBEDDING.arguments[0], EMBEDDING.arguments[1]


@pytest.mark.parametrize("table", all_shardings(MESH_2X2, TABLE.shape), ids=lambda s: s.to_sdy().split("@mesh, ")[1])
@pytest.mark.parametrize("tokens", ["", "x", "y", "xy"])
def test_an_embedding_and_its_gradient_are_right_for_every_split_of_vocabulary_hidden_and_batch(table, tokens):
    shardings = [table, split(MESH_2X2, tokens, ""), split(MESH_2X2, tokens, "", "")]
    assert_partitioned_right(
        annotate(EMBEDDING.module(), MESH_2X2, shardings, [table]), EMBEDDING.arguments, EMBEDDING.expected()
    )


@pytest.mark.parametrize("kind", ["add", "max", "mul", "set"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int8, np.uint8])
def test_updates_outside_the_array_are_dropped_in_every_part_of_it(kind, dtype):
    # The greatest index of an unsigned type would be -1 as a signed number.
    info = np.iinfo(dtype)
    indices = np.array([3, 15, 16, info.max, info.min if info.min else 9, info.max // 2 + 1], dtype)
    rng = np.random.default_rng(1)
    target, updates = (rng.standard_normal(shape).astype(np.float32) for shape in ((16, 4), (6, 4)))
    case = Case(lambda t, i, u: scatter(kind, t, i, u), (target, indices, updates))
    module = annotate(
        case.module(), MESH_2X4, [split(MESH_2X4, "yx", ""), split(MESH_2X4, ""), split(MESH_2X4, "", "")]
    )
    assert_partitioned_right(module, case.arguments, case.expected())


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_indices_of_64_bits_do_not_wrap(dtype):
    with jax.enable_x64(True):
        table = np.arange(64, dtype=np.float32).reshape(16, 4)
        indices = np.array([0, 15, 16, 2**32 + 3, 2**33, 2**62], dtype)
        lookup = Case(raw_take, (table, indices))
        update = Case(lambda t, i, u: scatter("add", t, i, u), (table, indices, np.ones((6, 4), np.float32)))
        for case in (lookup, update):
            shardings = [split(MESH_2X4, "y", ""), split(MESH_2X4, "x"), split(MESH_2X4, "x", "")]
            module = annotate(case.module(), MESH_2X4, shardings[: len(case.arguments)])
            assert_partitioned_right(module, case.arguments, case.expected())


def test_rows_set_in_a_split_array_are_not_summed_over_devices():
    updates = np.full((2, 4), 5, np.float32)
    case = Case(lambda t, i, u: scatter("set", t, i, u), (np.ones((16, 4), np.float32), np.array([3, 12]), updates))
    shardings = [split(MESH_2X4, "xy", ""), split(MESH_2X4, ""), split(MESH_2X4, "", "")]
    program = assert_partitioned_right(annotate(case.module(), MESH_2X4, shardings), case.arguments, case.expected())
    assert program.collectives == ()


def test_one_update_outside_a_devices_part_leaves_the_part_as_it_is():
    # As one device's program it would be miscompiled: XLA merges two slices and forgets the check of the bounds.
    case = INDEXING["setting one row"]
    for sharding in all_shardings(MESH_2X2, case.arguments[0].shape):
        module = annotate(case.module(), MESH_2X2, [None, None, None], [sharding])
        assert_partitioned_right(module, case.arguments, case.expected(), refused=case.refused)


def _table_and_indices(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    table = [draw(st.sampled_from([4, 8, 16])), draw(st.sampled_from([1, 2, 4]))]
    return table, draw(st.lists(st.sampled_from([1, 2, 4]), max_size=2))


@given(
    shapes=st.composite(_table_and_indices)(),
    kind=st.sampled_from(["take", "add", "max", "set"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=15)
def test_lookups_and_updates_of_any_shape_are_right_however_each_value_is_sharded(shapes, kind, seed):
    table_shape, index_shape = shapes
    rng = np.random.default_rng(seed)
    table = rng.standard_normal(table_shape).astype(np.float32)
    # Rows are set at most once: which of two updates wins is not defined.
    indices = rng.permutation(np.arange(-2, table_shape[0] + 14))[: int(np.prod(index_shape))].astype(np.int32)
    indices = indices.reshape(index_shape)
    updates = rng.standard_normal((*index_shape, table_shape[1])).astype(np.float32)
    case = (
        Case(raw_take, (table, indices))
        if kind == "take"
        else Case(lambda t, i, u: scatter(kind, t, i, u), (table, indices, updates), SPLIT_UPDATES)
    )
    case.assert_right_with_any_shardings(random.Random(seed).choice(MESHES), seed)
