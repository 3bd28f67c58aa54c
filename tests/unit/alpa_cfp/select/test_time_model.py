"""Times of candidates come from all measurements at once."""

import dataclasses

import numpy as np
import pytest

from alpa_cfp.candidates.block_candidates import distinct
from alpa_cfp.select.alike import split_of
from alpa_cfp.select.posterior import Corrections
from alpa_cfp.select.time_model import TimeModel
from unit.alpa_cfp.training_steps import two_layer_candidates

CANDIDATES = distinct(two_layer_candidates())
KINDS = [each.kind for each in two_layer_candidates() if each.kind == each.block for _ in each.candidates]
PRIOR = np.full(len(CANDIDATES), 1e-2)
REDUCE = ("all-reduce", 8)


def model() -> TimeModel:
    return TimeModel(KINDS, CANDIDATES)


def relatives() -> tuple[int, int]:
    """Two candidates of one kind that compute alike."""
    first: dict[object, int] = {}
    for number, candidate in enumerate(CANDIDATES):
        key = KINDS[number], split_of(candidate)
        if key in first:
            return first[key], number
        first[key] = number
    raise AssertionError("no candidates compute alike")


def of(known: TimeModel) -> Corrections:
    return known.posterior(PRIOR).mean


def test_without_measurements_the_times_are_the_estimates() -> None:
    np.testing.assert_array_equal(of(model()).computing_s, PRIOR)
    assert set(of(model()).deviation) == {1.0}


def test_a_candidate_that_was_measured_takes_about_what_was_measured() -> None:
    known = model()
    known.add_candidate(0, 2e-2)
    assert of(known).computing_s[0] == pytest.approx(2e-2, rel=0.05)


def test_a_measured_candidate_tells_of_those_that_compute_alike_more_than_of_its_kind() -> None:
    measured, relative = relatives()
    known = model()
    known.add_candidate(measured, 2e-2)
    found = of(known)
    kind = next(n for n in range(len(KINDS)) if KINDS[n] == KINDS[measured] and n not in (measured, relative)
                and split_of(CANDIDATES[n]) != split_of(CANDIDATES[measured]))  # fmt: skip
    assert found.computing_s[relative] > found.computing_s[kind] > PRIOR[kind]
    assert found.deviation[measured] < found.deviation[relative] < found.deviation[kind] < 1


def test_noise_does_not_decide_between_candidates_that_compute_alike() -> None:
    measured, relative = relatives()
    known = model()
    known.add_candidate(measured, 1.00e-2)
    known.add_candidate(relative, 1.06e-2)
    found = of(known).computing_s
    assert abs(found[relative] - found[measured]) < 0.5 * 0.06e-2


def test_a_whole_plan_that_communicates_much_and_is_slow_makes_collectives_slow() -> None:
    known = model()
    known.add_plan([0], [], {}, 0.0, 1e-2)
    known.add_plan([0], [], {REDUCE: 1e-2}, 0.0, 3e-2)
    found = of(known)
    assert found.factor(REDUCE) > 1.5
    assert found.factor(("all-gather", 2)) > 1.0


def test_a_plan_is_predicted_by_what_it_took_once_it_was_measured() -> None:
    known = model()
    known.add_plan([0, len(KINDS) - 1], [], {}, 0.0, 3e-2)
    assert of(known).computing_s[[0, len(KINDS) - 1]].sum() == pytest.approx(3e-2, rel=0.05)


def draws(known: TimeModel, count: int = 400) -> np.ndarray:
    """Drawn times of all candidates: [count, candidates]."""
    random = np.random.default_rng(0)
    return np.array([known.posterior(PRIOR).drawn(random).computing_s for _ in range(count)])


def test_drawn_times_are_around_the_means() -> None:
    known = model()
    known.add_candidate(0, 2e-2)
    known.add_plan([0, len(KINDS) - 1], [], {REDUCE: 1e-3}, 0.0, 3.5e-2)
    drawn = draws(known)
    assert np.abs(drawn.mean(axis=0) / of(known).computing_s - 1).max() < 0.06


def test_times_of_what_was_measured_are_drawn_closer_together_than_those_of_others() -> None:
    known = model()
    other = next(n for n in range(len(KINDS)) if KINDS[n] != KINDS[0])
    before = draws(known).std(axis=0)
    known.add_candidate(0, 2e-2)
    after = draws(known).std(axis=0)
    assert after[0] < after[other]
    assert after[0] < before[0]


def test_a_plan_that_was_measured_takes_about_as_long_in_each_draw() -> None:
    known = model()
    plan = [0, len(KINDS) - 1]
    before = draws(known)[:, plan].sum(axis=1).std()
    known.add_plan(plan, [], {}, 0.0, 3e-2)
    assert draws(known)[:, plan].sum(axis=1).std() < before / 4


def test_the_same_generator_draws_the_same_times() -> None:
    known = model()
    known.add_candidate(0, 2e-2)
    np.testing.assert_array_equal(draws(known, 3), draws(known, 3))


def test_a_measured_candidate_tells_of_those_that_do_equal_work_more_than_of_its_kind() -> None:
    splits: dict[object, int] = {}
    for number, candidate in enumerate(CANDIDATES):
        if KINDS[number] == KINDS[0]:
            splits.setdefault(split_of(candidate), number)  # the first one: sharded state adds to the work
    measured, equal, other = list(splits.values())[:3]
    candidates = list(CANDIDATES)
    candidates[equal] = dataclasses.replace(candidates[equal], work=candidates[measured].work)
    known = TimeModel(KINDS, candidates)
    known.add_candidate(measured, 2e-2)
    found = of(known)
    assert found.computing_s[measured] > found.computing_s[equal] > found.computing_s[other] > PRIOR[other]


def test_a_candidate_takes_what_was_measured_however_far_that_is_from_its_estimate() -> None:
    known = model()
    known.add_candidate(0, 1e-3 * PRIOR[0])
    assert of(known).computing_s[0] == pytest.approx(1e-3 * PRIOR[0], rel=0.05)


def test_plans_with_collectives_between_blocks_tell_what_these_take() -> None:
    known = model()
    known.add_plan([0], [], {REDUCE: 1e-2}, 0.0, 2e-2)
    known.add_plan([0], [], {REDUCE: 1e-2}, 1e-2, 3e-2)
    found = of(known)
    assert found.factor(REDUCE) == pytest.approx(1.0, abs=0.2)
    assert found.between_factor(REDUCE) > 1.5
