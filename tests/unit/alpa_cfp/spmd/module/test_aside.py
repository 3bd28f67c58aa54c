"""Collectives that can run beside contractions are told from those that contractions wait for."""

import pytest

from alpa_cfp.analysis.blocks import find_blocks
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.candidates.block_candidates import BlockCandidates, find_block_candidates
from alpa_cfp.costs import Rates, estimated_s
from alpa_cfp.extraction.subprograms import find_subprograms
from alpa_cfp.planner.plan_programs import with_plan
from alpa_cfp.select.baselines import baselines
from alpa_cfp.select.search_problem import find_boundaries
from alpa_cfp.spmd.partition import Collective
from unit.alpa_cfp.training_steps import (
    MESH,
    WIDTH,
    estimated_problem,
    model_module,
    two_layer_blocks,
    two_layer_boundaries,
    two_layer_candidates,
    two_layer_module,
)

pytestmark = pytest.mark.slow

WEIGHT_BYTES = 4 * WIDTH**2


def chosen(name: str) -> list[tuple[BlockCandidates, int]]:
    """The choices of a plan by hand."""
    candidates = two_layer_candidates()
    times = [[estimated_s(candidate.work, Rates()) for candidate in block.candidates] for block in candidates]
    problem = estimated_problem(candidates, two_layer_boundaries(), times, Rates())
    plan = baselines(two_layer_blocks().blocks, candidates, problem, MESH)[name]
    return list(zip(candidates, plan.choices, strict=True))


def collectives(name: str) -> tuple[Collective, ...]:
    """Those of the whole program of a plan by hand."""
    strategies = [block.candidates[choice].strategy for block, choice in chosen(name)]
    program = with_plan(two_layer_module(), two_layer_blocks(), MESH, strategies).partitioned
    assert program is not None
    return program.collectives


def test_sums_of_gradients_are_aside() -> None:
    (both,) = collectives("data parallel")
    assert both.is_aside
    assert both.size_bytes == 2 * WEIGHT_BYTES


def test_what_zero_gathers_and_scatters_of_weights_is_aside() -> None:
    for name in ("ZeRO-2", "ZeRO-3"):
        found = collectives(name)
        assert {each.kind for each in found} == {"reduce-scatter", "all-gather"}
        assert all(each.is_aside for each in found)


def test_sums_of_activations_between_contractions_are_not_aside() -> None:
    assert [each.is_aside for each in collectives("Megatron") if each.size_bytes >= WEIGHT_BYTES] == [False]


def test_a_candidate_of_zero_says_what_it_gathers_aside() -> None:
    moved = [each for block, choice in chosen("ZeRO-3") for each in block.candidates[choice].work.collectives]
    assert moved
    assert all(each.is_aside for each in moved)


def test_what_moves_of_a_weight_between_the_blocks_that_use_it_is_aside_and_of_activations_is_not() -> None:
    module = model_module("gpt")  # its table of words is the head, too
    blocks = find_blocks(read_graph(module.bytecode))
    candidates = find_block_candidates(find_subprograms(module, blocks), MESH)
    together, apart = (find_boundaries(module, blocks, candidates, overlaps=overlaps) for overlaps in (False, True))
    assert not any(key.is_aside for crossing in together.crossings for key in crossing.by_key)
    assert {key.is_aside for crossing in apart.crossings for key in crossing.by_key} == {False, True}
    for one, other in zip(together.crossings, apart.crossings, strict=True):
        assert (one.amounts == other.amounts).all()
