"""The fastest of the plans is found by runs side by side, however noisy single ones are."""

import itertools
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_cfp.costs import Rates
from alpa_cfp.database import Profile, utc_now
from alpa_cfp.select.candidate_costs import CandidateCosts
from alpa_cfp.select.plan_race import PlanRace
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.select.plan_trials import PlanTrial, PlanTrials
from alpa_cfp.select.profile_source import Samples
from alpa_cfp.spmd.module.hlo_module import HloModule
from unit.alpa_cfp.training_steps import two_layer_boundaries, two_layer_candidates, two_layer_module

NOTHING = {f"{name}_bytes": 0 for name in ("argument", "output", "aliased", "temporary")}
SEARCH = PlanSearch(CandidateCosts(two_layer_candidates(), two_layer_boundaries(), Rates()))
SOLUTION = SEARCH.best(1, None)[0]


class Track:
    """Runs plans that take so long, times what `slowness` says of each call; keeps all samples, as a database."""

    def __init__(
        self,
        seconds: Sequence[float],
        slowness: Callable[[int], float] = lambda call: 1.0,
        noise: Callable[[], float] = lambda: 1.0,
        failing: Callable[[str, int], bool] = lambda name, call: False,
    ) -> None:
        self._seconds = {str(number): each for number, each in enumerate(seconds)}
        self._slowness, self._noise, self._failing = slowness, noise, failing
        self._samples = dict[str, tuple[float, ...]]()
        self.calls: list[set[str]] = []
        self.trials = [PlanTrial(SOLUTION, replace(two_layer_module(), name=name), ()) for name in self._seconds]
        self.timing = PlanTrials(SEARCH, self, samples=2)
        self.timing.time(self.trials)
        self.race = PlanRace(self.timing)

    def __call__(self, modules: Sequence[HloModule], samples: Samples = None, /) -> list[Profile]:
        assert isinstance(samples, Sequence)
        call = len(self.calls)
        self.calls.append({module.name for module in modules})
        return [self._profile(module.name, count, call) for module, count in zip(modules, samples, strict=True)]

    def _profile(self, name: str, count: int, call: int) -> Profile:
        known = self._samples.get(name, ())
        more = (self._slowness(call) * self._seconds[name] * self._noise() for _ in range(count - len(known)))
        self._samples[name] = (*known, *more)
        if self._failing(name, call):
            return Profile(status="failed", created_at=utc_now(), failure="crashed", failure_message="it did")
        return Profile(status="measured", created_at=utc_now(), samples_s=self._samples[name], compile_s=0.1, **NOTHING)


def test_plans_that_are_far_behind_do_not_take_part() -> None:
    track = Track([1.02, 1.0, 2.0])
    track.race.run(track.trials, None)
    assert all("2" not in call for call in track.calls[1:])


def test_a_plan_that_is_far_ahead_runs_once_more_alone() -> None:
    track = Track([1.0, 2.0])
    track.race.run(track.trials, None)
    assert track.calls[1:] == [{"0"}]


@pytest.mark.parametrize(("step_s", "expected"), [(0.001, 3), (1.0, 2)])
def test_plans_that_are_alike_do_not_race_to_the_last_round_least_of_all_slow_ones(
    step_s: float, expected: int
) -> None:
    track = Track([step_s * each for each in (1.0, 1.001, 1.0005, 1.001, 1.0, 1.0005)])
    track.race.run(track.trials, None)
    rounds = [call for call in track.calls[1:] if len(call) == len(track.trials)]
    assert len(rounds) == expected  # of six at most


def test_a_plan_that_is_surely_slower_leaves() -> None:
    track = Track([1.0, 1.08, 1.0])
    track.race.run(track.trials, None)
    assert "1" in track.calls[1]
    assert "1" not in track.calls[-1]


@given(
    seconds=st.lists(st.floats(0.5, 2.0), min_size=1, max_size=5),
    slowness=st.lists(st.floats(0.5, 2.0), min_size=12, max_size=12),
)
@settings(max_examples=30, deadline=None)
def test_how_fast_the_machine_is_at_the_moment_changes_nothing(seconds: list[float], slowness: list[float]) -> None:
    track = Track(seconds, lambda call: slowness[call])
    track.race.run(track.trials, None)
    chosen_by, reported = track.race.chosen_by_s, track.race.reported_s
    for first, second in itertools.combinations(range(len(seconds)), 2):
        ratio = seconds[first] / seconds[second]
        assert chosen_by[first] / chosen_by[second] == pytest.approx(ratio)
        assert reported[first] / reported[second] == pytest.approx(ratio)


def test_what_is_reported_of_the_chosen_plan_comes_from_runs_that_did_not_choose_it() -> None:
    track = Track([1.0, 1.001, 1.002])
    track.race.run(track.trials, None)
    rounds = len(track.calls)
    lucky = Track([1.0, 1.001, 1.002], lambda call: 3.0 if call == rounds - 1 else 1.0)
    lucky.race.run(lucky.trials, None)
    assert lucky.race.chosen_by_s[0] == pytest.approx(1.0)
    assert lucky.race.reported_s[0] == pytest.approx(3.0)


def test_the_fastest_of_noisy_plans_is_found_much_more_often_than_by_the_runs_before() -> None:
    """Single runs deviate by 8%, plans differ by 4%."""
    before, after = list[bool](), list[bool]()
    for seed in range(60):
        drawn = random.Random(seed)
        track = Track([1.04, 1.0, 1.04, 1.04], noise=lambda drawn=drawn: math.exp(0.08 * drawn.gauss(0, 1)))
        before.append(min(range(4), key=lambda n, track=track: track.timing.step_s(track.trials[n])) == 1)
        track.race.run(track.trials, None)
        after.append(min(track.race.chosen_by_s, key=track.race.chosen_by_s.__getitem__) == 1)
    assert statistics.mean(after) > statistics.mean(before) + 0.15


def test_a_plan_that_fails_in_the_race_is_no_longer_run() -> None:
    track = Track([1.0, 1.001, 1.002], failing=lambda name, call: name == "0" and call >= 1)
    track.race.run(track.trials, None)
    assert all("0" not in call for call in track.calls[2:])
    assert not track.timing.is_timed(track.trials[0])


def test_plans_that_do_not_fit_take_no_part_if_others_do() -> None:
    track = Track([1.0, 1.0])
    track.trials[0].profiles = [
        None if each is None else replace(each, temporary_bytes=100) for each in track.trials[0].profiles
    ]
    track.race.run(track.trials, 50)
    assert track.calls[1:] == [{"1"}]


def test_where_the_time_is_over_nothing_runs_again() -> None:
    track = Track([1.0, 1.001])
    track.race.run(track.trials, None, is_short=True)
    assert len(track.calls) == 1
    assert track.race.chosen_by_s == track.race.reported_s == pytest.approx({0: 1.0, 1: 1.001})
