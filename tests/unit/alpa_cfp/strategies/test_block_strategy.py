"""The strategies of a block: one for each assignment of mesh axes to factors that they divide."""

import dataclasses
import math

from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.analysis.blocks import BlockFactor, ParallelBlock
from alpa_cfp.analysis.contractions import Side
from alpa_cfp.strategies.block_strategy import BlockStrategy, strategies_of, summed_axes


def block(*factors: tuple[Side, int], invalidated: tuple[int, ...] = ()) -> ParallelBlock:
    """A block of nothing but factors: (side, max_shards)."""
    made = tuple(
        BlockFactor(side, max_shards, i not in invalidated, ()) for i, (side, max_shards) in enumerate(factors)
    )
    return ParallelBlock(0, (), made, (), (), (), (), None)


MATMUL = block((Side.LEFT, 16), (Side.RIGHT, 32), (Side.REDUCTION, 8))


def chosen(strategies: tuple[BlockStrategy, ...]) -> set[tuple[int | None, ...]]:
    return {strategy.factors for strategy in strategies}


def test_each_axis_splits_a_factor_or_none():
    assert chosen(strategies_of(MATMUL, (8,))) == {(None,), (0,), (1,), (2,)}


def test_two_axes_may_split_one_factor_together_if_it_has_as_many_parts():
    strategies = chosen(strategies_of(MATMUL, (2, 8)))
    assert {(0, 0), (1, 1)} <= strategies
    assert (2, 2) not in strategies  # 16 parts of 8


def test_without_partial_sums_no_reduction_is_split():
    assert chosen(strategies_of(MATMUL, (8,), partial_sums=False)) == {(None,), (0,), (1,)}


def test_a_factor_that_some_member_would_have_to_gather_is_not_split():
    assert chosen(
        strategies_of(
            dataclasses.replace(MATMUL, factors=block((Side.LEFT, 16), (Side.RIGHT, 32), invalidated=(0,)).factors),
            (2,),
        )
    ) == {(None,), (1,)}


def test_an_axis_of_one_device_splits_nothing():
    assert chosen(strategies_of(MATMUL, (1, 4))) == {(None, None), (None, 0), (None, 1), (None, 2)}


def test_a_block_without_factors_has_one_strategy():
    assert chosen(strategies_of(block(), (2, 4))) == {(None, None)}


def with_split_sums(strategies: tuple[BlockStrategy, ...]) -> set[tuple[tuple[int | None, ...], int]]:
    return {(each.factors, each.sums_along) for each in strategies if each.sums_along is not None}


def test_where_weights_are_split_sums_are_whole_or_split_along_activations():
    strategies = strategies_of(MATMUL, (8,), split_sums=True)
    assert with_split_sums(strategies) == {((1,), 0), ((2,), 0)}
    assert tuple(each for each in strategies if each.sums_along is None) == strategies_of(MATMUL, (8,))


def test_sums_are_split_along_the_outermost_dim_that_has_enough_parts():
    positions = block((Side.LEFT, 4), (Side.LEFT, 16), (Side.RIGHT, 32), (Side.REDUCTION, 8))
    assert with_split_sums(strategies_of(positions, (4,), split_sums=True)) == {((2,), 0), ((3,), 0)}
    assert with_split_sums(strategies_of(positions, (2, 4), split_sums=True)) >= {((0, 2), 1), ((1, 3), 0), ((2, 2), 1)}


def test_sums_that_cannot_be_split_in_equal_parts_are_whole():
    assert not with_split_sums(strategies_of(block((Side.LEFT, 6), (Side.RIGHT, 32)), (4,), split_sums=True))
    assert not with_split_sums(strategies_of(block((Side.RIGHT, 32), (Side.REDUCTION, 8)), (4,), split_sums=True))


def test_where_only_samples_are_split_there_are_no_sums_to_split():
    assert not with_split_sums(strategies_of(block((Side.LEFT, 64), (Side.BATCH, 8)), (2, 4), split_sums=True))


def test_what_a_loop_sums_is_whole():
    loop = dataclasses.replace(MATMUL, loop=0)
    assert strategies_of(loop, (8,), split_sums=True) == strategies_of(loop, (8,))


@given(
    st.lists(st.tuples(st.sampled_from(Side), st.integers(1, 24)), max_size=4),
    st.lists(st.sampled_from((1, 2, 3, 4)), min_size=1, max_size=2),
)
def test_parts_are_equal_and_no_strategy_is_given_twice(factors, mesh_shape):
    made = block(*factors)
    strategies = strategies_of(made, tuple(mesh_shape), split_sums=True)
    assert len(set(strategies)) == len(strategies)
    assert strategies[0].factors == (None,) * len(mesh_shape)
    for strategy in strategies:
        for index, factor in enumerate(made.factors):
            axes = strategy.axes_of(index)
            if index == strategy.sums_along:
                axes = (*axes, *summed_axes(made, strategy, tuple(mesh_shape)))
            assert factor.max_shards % math.prod(mesh_shape[axis] for axis in axes) == 0
