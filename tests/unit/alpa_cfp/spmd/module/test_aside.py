"""Collectives that can run beside contractions are told from those that contractions wait for."""

from alpa_cfp.candidates.block_candidates import BlockCandidates
from alpa_cfp.costs import Rates, estimated_s
from alpa_cfp.planner.plan_programs import with_plan
from alpa_cfp.select.baselines import baselines
from alpa_cfp.select.search_problem import find_boundaries
from alpa_cfp.spmd.partition import Collective
from unit.alpa_cfp.training_steps import (
    MESH,
    WIDTH,
    estimated_problem,
    two_layer_blocks,
    two_layer_boundaries,
    two_layer_candidates,
    two_layer_module,
)

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


def test_only_what_moves_of_weights_is_aside_between_blocks() -> None:
    together = two_layer_boundaries()
    apart = find_boundaries(two_layer_module(), two_layer_blocks(), two_layer_candidates(), overlaps=True)
    assert not any(key.is_aside for crossing in together.crossings for key in crossing.by_key)
    assert any(not key.is_aside for crossing in apart.crossings for key in crossing.by_key)
    for one, other in zip(together.crossings, apart.crossings, strict=True):
        assert (one.amounts == other.amounts).all()
