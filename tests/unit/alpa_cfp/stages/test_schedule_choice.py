"""Which schedule a pipeline has, and how its layers are cut for it."""

import itertools
from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.stages.schedule_choice import LayerCosts


def costs_of(
    layer_s: Sequence[float], meshes: int, micro_batches: int = 4, most_kept: float = inf, cotangents: float = 0.5
) -> LayerCosts:
    """Costs that are sums of those of layers, the same on all meshes."""

    def cost_s(first: int, last: int, mesh: int) -> float:
        return sum(layer_s[first : last + 1])

    return LayerCosts(len(layer_s), micro_batches, cost_s, [most_kept] * meshes, lambda first, last: cotangents)


def whole(costs: LayerCosts) -> tuple[tuple[int, ...], ...]:
    runs = costs.cut(1)
    assert runs is not None
    return runs


LAYERS = st.lists(st.floats(0.1, 5), min_size=1, max_size=9)


@given(LAYERS, st.integers(1, 3), st.integers(1, 3))
def test_a_cut_has_each_layer_once_and_no_empty_stage(layer_s: list[float], meshes: int, chunks: int) -> None:
    runs = costs_of(layer_s, meshes).cut(chunks)
    if meshes * chunks > len(layer_s):
        assert runs is None
    else:
        assert runs is not None
        assert len(runs) == meshes * chunks
        assert all(runs)
        assert list(itertools.chain.from_iterable(runs)) == list(range(len(layer_s)))


@given(LAYERS.filter(lambda layers: len(layers) > 3))
def test_a_cut_has_the_least_sum_of_squares(layer_s: list[float]) -> None:
    costs, last = costs_of(layer_s, 2), len(layer_s)
    runs = costs.cut(2)
    assert runs is not None
    cuts = [(0, *inner, last) for inner in itertools.combinations(range(1, last), 3)]
    least = min(sum(sum(layer_s[a:b]) ** 2 for a, b in itertools.pairwise(cut)) for cut in cuts)
    assert sum(costs.cost_s(run[0], run[-1], 0) ** 2 for run in runs) == pytest.approx(least)


def test_a_run_whose_cost_is_unknown_is_not_in_a_cut() -> None:
    def cost_s(first: int, last: int, mesh: int) -> float:
        return inf if (first, last) == (0, 1) else 1.0 + last - first

    assert LayerCosts(4, 4, cost_s, [inf, inf], lambda first, last: 0.5).cut(1) == ((0,), (1, 2, 3))


def test_with_many_micro_batches_1f1b_stays() -> None:
    costs = costs_of([1.0] * 8, meshes=2, micro_batches=64)
    assert costs.fastest(whole(costs)).name == "1f1b"


def test_with_few_micro_batches_the_fastest_is_taken() -> None:
    costs = costs_of([1.0] * 8, meshes=4)
    choice = costs.fastest(whole(costs))
    assert choice.name == "zero_bubble"
    others = [costs.zero_bubble(whole(costs)), *(costs.fastest_interleaved(chunks) for chunks in (1, 2))]
    assert all(other is not None and costs.step_s(choice) <= costs.step_s(other) for other in others)


def test_where_backward_passes_cannot_be_split_several_stages_a_mesh_make_the_bubble_smaller() -> None:
    costs = costs_of([1.0] * 16, meshes=8, micro_batches=8, cotangents=1.0)
    choice = costs.fastest(whole(costs))
    assert (choice.name, len(choice.runs)) == ("interleaved_1f1b", 16)


def test_where_neither_makes_it_smaller_by_more_than_it_costs_1f1b_stays() -> None:
    costs = costs_of([1.0] * 4, meshes=4, micro_batches=8, cotangents=1.0)
    assert costs.fastest(whole(costs)).name == "1f1b"


def test_memory_for_as_many_activations_as_1f1b_keeps_leaves_others_out() -> None:
    costs = costs_of([1.0] * 16, meshes=4, micro_batches=8, most_kept=4)
    choice = costs.fastest_interleaved(4)
    assert choice is not None
    assert costs.step_s(choice) == inf
    # It keeps as many activations, and what backward passes hand on to gradients.
    assert costs.step_s(costs.zero_bubble(whole(costs))) == inf
    assert costs.fastest(whole(costs)).name == "1f1b"


def test_memory_for_twice_as_many_is_enough_for_gradients_apart() -> None:
    costs = costs_of([1.0] * 16, meshes=4, micro_batches=8, most_kept=8)
    assert costs.fastest(whole(costs)).name == "zero_bubble"


def test_seconds_of_tasks_have_no_programs_in_them() -> None:
    costs = costs_of([3.0, 3.0], meshes=2)
    assert costs.tasks_s(costs.zero_bubble(whole(costs))) == pytest.approx(13.0)


def test_with_too_few_layers_there_is_no_interleaved_schedule() -> None:
    costs = costs_of([1.0] * 5, meshes=2)
    assert costs.fastest_interleaved(3) is None
    assert costs_of([1.0] * 3, meshes=2).fastest_interleaved(None) is None


def test_asked_for_any_number_of_stages_the_fastest_has_two_at_least() -> None:
    choice = costs_of([1.0] * 8, meshes=2, micro_batches=64).fastest_interleaved(None)
    assert choice is not None
    assert len(choice.runs) >= 4


def test_gradients_apart_of_equal_stages_take_what_the_paper_says() -> None:
    # One program more for each micro-batch takes a tenth.
    costs = costs_of([3.0, 3.0], meshes=2)
    assert costs.step_s(costs.zero_bubble(whole(costs))) == pytest.approx(1.1 * 13.0)
