"""The work that is done once a step, however many micro-batches there are."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.analysis.blocks import find_blocks
from alpa_cfp.analysis.contractions import Side
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.candidates.accumulation import step_time_s
from alpa_cfp.candidates.block_candidates import BlockCandidates, find_block_candidates
from alpa_cfp.candidates.candidate import Candidate
from alpa_cfp.costs import Rates
from alpa_cfp.extraction.subprograms import find_subprograms
from alpa_cfp.select.candidate_costs import CandidateCosts
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.strategies.block_strategy import StateSharding
from unit.alpa_cfp.training_steps import (
    MESH,
    WIDTH,
    model_module,
    two_layer_blocks,
    two_layer_boundaries,
    two_layer_candidates,
)

RATES = Rates()
WEIGHT_BYTES = WIDTH * WIDTH * 4
WHOLE = StateSharding.REPLICATED
seconds = st.floats(1e-6, 1.0)


def split_along(side: Side, state_sharding: StateSharding = StateSharding.REPLICATED) -> Candidate:
    """The first block split along its factor on a side."""
    block: BlockCandidates = two_layer_candidates()[0]
    factors = two_layer_blocks().blocks[block.block].factors
    return next(
        each
        for each in block.candidates
        if each.strategy.state_sharding is state_sharding
        and (factor := each.strategy.factors[0]) is not None
        and factors[factor].side is side
    )


def communication(candidate: Candidate) -> dict[str, int]:
    return {each.kind: each.size_bytes for each in candidate.per_step.collectives}


def test_where_samples_are_split_the_gradients_are_summed_once() -> None:
    assert communication(split_along(Side.LEFT)) == {"all-reduce": WEIGHT_BYTES}


@pytest.mark.parametrize("side", [Side.RIGHT, Side.REDUCTION])
def test_where_the_weight_is_split_nothing_is_summed_once(side: Side) -> None:
    assert communication(split_along(side)) == {}


def test_with_zero2_gradients_are_reduce_scattered_and_weights_gathered_once() -> None:
    zero2 = split_along(Side.LEFT, StateSharding.ZERO2)
    part = WEIGHT_BYTES // MESH.num_devices
    assert communication(zero2) == {"reduce-scatter": WEIGHT_BYTES, "all-gather": part}


def test_with_zero3_weights_are_gathered_for_each_micro_batch_and_not_once() -> None:
    assert communication(split_along(Side.LEFT, StateSharding.ZERO3)) == {"reduce-scatter": WEIGHT_BYTES}


@pytest.mark.parametrize("model", ["mlp", "gpt"])
def test_zero_scatters_and_sums_together_what_is_summed_without_it(model: str) -> None:
    """Biases and scales stay whole, and are summed."""
    module = model_module(model)
    blocks = find_blocks(read_graph(module.bytecode))
    kinds = Counter[str]()
    for block in find_block_candidates(find_subprograms(module, blocks), MESH):
        whole = {each.strategy.factors: each for each in block.candidates if each.strategy.state_sharding is WHOLE}
        for each in block.candidates:
            sums = communication(each)
            summed = sums.get("all-reduce", 0) + sums.get("reduce-scatter", 0)
            assert summed == communication(whole[each.strategy.factors]).get("all-reduce", 0)
            kinds.update(sums)
    assert set(kinds) == {"all-reduce", "reduce-scatter", "all-gather"}


def test_with_zero3_an_update_writes_a_part() -> None:
    whole, part = (
        split_along(Side.LEFT, state_sharding).per_step
        for state_sharding in (StateSharding.REPLICATED, StateSharding.ZERO3)
    )
    assert whole.memory_bytes == MESH.num_devices * part.memory_bytes == 2 * WEIGHT_BYTES


@given(seconds, seconds, seconds, st.integers(1, 64))
def test_a_step_takes_no_less_than_one_micro_batch_and_no_more_than_each_with_everything(
    per_step_s: float, estimated_s: float, total_s: float, micro_batches: int
) -> None:
    step_s = step_time_s(per_step_s, estimated_s, total_s, micro_batches)
    assert total_s <= step_s <= micro_batches * total_s * (1 + 1e-9)


def test_the_per_step_work_counts_once() -> None:
    assert step_time_s(3.0, 10.0, 10.0, 4) == pytest.approx(3.0 + 4 * 7.0)


@given(st.floats(0.1, 10.0))
def test_an_error_of_the_rates_counts_for_the_per_step_work_too(slower: float) -> None:
    assert step_time_s(3.0, 10.0, slower * 10.0, 4) == pytest.approx(slower * (3.0 + 4 * 7.0))


def test_what_cannot_be_run_takes_forever_however_many_micro_batches_there_are() -> None:
    assert step_time_s(1.0, 2.0, math.inf, 1) == step_time_s(1.0, 2.0, math.inf, 4) == math.inf


def test_a_step_of_one_micro_batch_takes_what_it_takes() -> None:
    assert step_time_s(3.0, 5.0, 10.0, 1) == 10.0


def test_more_micro_batches_never_make_a_plan_cheaper() -> None:
    costs = []
    for count in (1, 2, 8):
        choosing = PlanSearch(
            CandidateCosts(two_layer_candidates(), two_layer_boundaries(), RATES, None, math.inf, micro_batches=count)
        )
        costs.append(choosing.best(1, None)[0].time_s)
    assert costs == sorted(costs)
    assert costs[-1] <= 8 * costs[0]
