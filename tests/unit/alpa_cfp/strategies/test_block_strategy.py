"""The strategies of a block: one for each assignment of mesh axes to factors that they divide."""

import dataclasses
import math

from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.analysis.blocks import BlockFactor, ParallelBlock
from alpa_cfp.analysis.contractions import Side
from alpa_cfp.strategies.block_strategy import BlockStrategy, strategies_of


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


@given(
    st.lists(st.tuples(st.sampled_from(Side), st.integers(1, 24)), max_size=4),
    st.lists(st.sampled_from((1, 2, 3, 4)), min_size=1, max_size=2),
)
def test_parts_are_equal_and_no_strategy_is_given_twice(factors, mesh_shape):
    made = block(*factors)
    strategies = strategies_of(made, tuple(mesh_shape))
    assert len(set(strategies)) == len(strategies)
    assert strategies[0].factors == (None,) * len(mesh_shape)
    for strategy in strategies:
        for index, factor in enumerate(made.factors):
            assert factor.max_shards % math.prod(mesh_shape[axis] for axis in strategy.axes_of(index)) == 0
