"""What is measured before a plan is chosen: no more than its choice needs."""

import dataclasses
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from alpa_cfp.candidates.block_candidates import BlockCandidates, distinct
from alpa_cfp.costs import Rates, Work, estimated_s
from alpa_cfp.database import Collective, Profile, utc_now
from alpa_cfp.profiling import TimeBudget
from alpa_cfp.search import SearchProblem, Solution, search
from alpa_cfp.select import bounded_search, plan_search
from alpa_cfp.select.candidate_costs import CandidateCosts
from alpa_cfp.select.candidate_time import candidate_times
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.select.profile_source import Samples
from alpa_cfp.spmd import partition
from alpa_cfp.spmd.module.hlo_module import HloModule
from unit.alpa_cfp.training_steps import measured_numbers, measured_program, two_layer_boundaries, two_layer_candidates

pytestmark = pytest.mark.slow

NOTHING = {f"{name}_bytes": 0 for name in ("argument", "output", "aliased", "temporary")}
MEASURED = Profile(status="measured", created_at=utc_now(), samples_s=(1.0,), compile_s=0.1, **NOTHING)
RATES = Rates(flops_per_s=1e9, bytes_per_s=1e9, latency_s=1e-4, link_bytes_per_s=1e8)


class Recorded:
    """Profiles whose times are made up: each estimate times a factor between 1 / `spread` and `spread`."""

    def __init__(self, spread: float, seed: int = 0, failing: frozenset[int] = frozenset()):
        drawn = random.Random(seed)
        self.asked: list[int] = []
        self._number = measured_numbers(two_layer_candidates())
        self.seconds = [
            estimated_s(dataclasses.replace(each.work, collectives=()), RATES) * spread ** drawn.uniform(-1, 1)
            for each in distinct(two_layer_candidates())
        ]
        self._failing = failing

    def __call__(self, modules: Sequence[HloModule], samples: Samples = None, /) -> list[Profile]:
        del samples
        numbers = [self._number[measured_program(module)] for module in modules]
        self.asked += numbers
        return [self._profile(number) for number in numbers]

    def _profile(self, number: int) -> Profile:
        if number in self._failing:
            return Profile(status="failed", created_at=utc_now(), failure="crashed", failure_message="it did")
        return dataclasses.replace(MEASURED, samples_s=(self.seconds[number],))


def choosing(recorded: Recorded | None, margin: float) -> PlanSearch:
    return PlanSearch(CandidateCosts(two_layer_candidates(), two_layer_boundaries(), RATES, recorded, margin))


@pytest.mark.parametrize("seed", range(20))
def test_pruning_finds_plans_that_measuring_everything_hardly_betters(seed: int) -> None:
    everything, some = Recorded(1.2, seed), Recorded(1.2, seed)
    known = choosing(everything, math.inf)
    expected = known.best(1, None)[0]
    # Estimates are wrong by up to a fifth, and so are the rates that are fitted to them.
    found = choosing(some, 1.5).best(1, None)[0]
    assert known.problem.time(found.choices) <= 1.02 * expected.time_s
    assert len(everything.asked) == known.costs.measured < len(distinct(two_layer_candidates()))


def test_pruning_leaves_out_what_cannot_be_among_the_best() -> None:
    recorded = Recorded(1.2)
    choosing(recorded, 1.5).best(1, None)
    assert len(recorded.asked) < len(distinct(two_layer_candidates()))


def test_nothing_is_measured_twice() -> None:
    recorded = Recorded(1.5)
    chosen = choosing(recorded, 2.0)
    chosen.best(3, None)
    chosen.best(3, None)
    assert len(recorded.asked) == len(set(recorded.asked)) == chosen.costs.measured


def test_a_candidate_that_cannot_be_run_is_not_chosen() -> None:
    best = choosing(Recorded(1.2), math.inf).best(1, None)[0]
    block_candidates = two_layer_candidates()
    taken = block_candidates[0].candidates[best.choices[0]]
    number = next(i for i, each in enumerate(distinct(block_candidates)) if each is taken)
    other = choosing(Recorded(1.2, failing=frozenset({number})), math.inf).best(1, None)[0]
    assert other.choices[0] != best.choices[0]
    assert math.isfinite(other.time_s)


def test_estimates_measure_nothing_and_are_not_optimistic() -> None:
    chosen = choosing(None, 1.5)
    plan = chosen.best(1, None)[0]
    times = [u.candidates[c] for u, c in zip(two_layer_candidates(), plan.choices, strict=True)]
    own = sum(estimated_s(each.work, RATES) for each in times)
    assert chosen.costs.measured == 0
    edges = zip(chosen.problem.edges, chosen.problem.ends, strict=True)
    between = sum(float(edge.time_s[plan.choices[first], plan.choices[second]]) for edge, (first, second) in edges)
    assert plan.time_s == pytest.approx(own + between)


def test_the_same_profiles_give_the_same_plans() -> None:
    first, second = (choosing(Recorded(1.3, 4), 1.5).best(3, None) for _ in range(2))
    assert first == second


def _said(chosen: PlanSearch) -> str:
    chosen.best(1, None)
    chosen.add_caveats()
    return "\n".join(caveat.text for caveat in chosen.caveats.all)


def test_candidates_that_cannot_be_run_or_have_no_profile_are_counted_in_what_is_said() -> None:
    recorded = Recorded(1.2, failing=frozenset({3}))
    said = _said(choosing(recorded, math.inf))
    assert "1 of" in said
    assert "of blocks could not be run, so their strategies are in no plan" in said
    missing = Recorded(1.2)
    everything = missing.__call__
    said = _said(
        PlanSearch(
            CandidateCosts(
                two_layer_candidates(),
                two_layer_boundaries(),
                RATES,
                lambda modules, samples=None, /: [None, *everything(modules)[1:]],
                math.inf,
            )
        )
    )
    assert "of blocks have no profile, so their strategies are in no plan" in said


@pytest.mark.parametrize(("gap_s", "later_s"), [(1.0, 10.0), (0.0, 80.0)])
def test_after_a_search_that_did_not_come_close_the_others_take_a_part_of_the_time(
    monkeypatch: pytest.MonkeyPatch, gap_s: float, later_s: float
) -> None:
    limits: list[float] = []

    def limited(problem: SearchProblem, budget_bytes: int | None, *, time_limit_s: float, **limit: Any) -> Solution:
        if limit.get("thorough", True):  # those for drawn times take less
            limits.append(time_limit_s)
        return dataclasses.replace(search(problem, budget_bytes, **limit), gap_s=gap_s)

    monkeypatch.setattr(bounded_search, "search", limited)
    costs = CandidateCosts(two_layer_candidates(), two_layer_boundaries(), RATES, Recorded(1.2), 1.5)
    PlanSearch(costs, limit_s=80.0).best(3, None)
    assert len(limits) > 1
    assert limits == [80.0] + [later_s] * (len(limits) - 1)


def _changed(**changes: Any) -> list[BlockCandidates]:
    """The candidates of each block with all their candidates changed."""
    return [
        dataclasses.replace(block, candidates=tuple(dataclasses.replace(each, **changes) for each in block.candidates))
        for block in two_layer_candidates()
    ]


def test_candidates_whose_communication_is_not_known_are_counted_with_the_reason() -> None:
    said = _said(PlanSearch(CandidateCosts(_changed(unread="a sort"), two_layer_boundaries(), RATES, None, 1.5)))
    assert (
        "of blocks are left to XLA's partitioner (a sort): what they communicate is not known, and is in no estimate"
    ) in said


def test_candidates_whose_communication_is_predicted_are_counted_with_the_reason() -> None:
    said = _said(PlanSearch(CandidateCosts(_changed(predicted="a sort"), two_layer_boundaries(), RATES, None, 1.5)))
    assert (
        "of blocks are left to XLA's partitioner (a sort): they are estimated as if each device computed whole what "
        "Shardy does not split"
    ) in said


SUM = partition.Collective("all-reduce", 64, 8)
READ = dataclasses.replace(MEASURED, collectives=(Collective("all-reduce", 64, 8, 2),), collectives_compiled=True)


def test_what_was_read_from_a_compiled_program_is_known_and_no_prediction_is_spoken_of() -> None:
    block_candidates = _changed(predicted="a sort")
    chosen = PlanSearch(
        CandidateCosts(
            block_candidates, two_layer_boundaries(), RATES, lambda modules, _=None, /: [READ] * len(modules), math.inf
        )
    )
    assert {known.compiled for block in block_candidates for known in candidate_times(chosen.costs, block)} == {
        (SUM, SUM)
    }
    assert _said(chosen) == ""


def test_of_a_profile_from_before_compiled_programs_were_read_the_prediction_stays() -> None:
    block_candidates, old = (
        _changed(predicted="a sort"),
        dataclasses.replace(READ, collectives=(), collectives_compiled=False),
    )
    chosen = PlanSearch(
        CandidateCosts(
            block_candidates, two_layer_boundaries(), RATES, lambda modules, _=None, /: [old] * len(modules), math.inf
        )
    )
    assert {known.compiled for block in block_candidates for known in candidate_times(chosen.costs, block)} == {None}
    assert "as if each device computed whole what Shardy does not split" in _said(chosen)


def test_rates_are_fitted_to_what_compiled_programs_communicate() -> None:
    block_candidates = _changed(work=Work(0.0, 0.0, ()), predicted="a sort")

    def rates(profile: Profile) -> Rates:
        return PlanSearch(
            CandidateCosts(
                block_candidates,
                two_layer_boundaries(),
                RATES,
                lambda modules, _=None, /: [profile] * len(modules),
                math.inf,
            )
        ).costs._rates

    fast = dataclasses.replace(READ, samples_s=(RATES.latency_s,))
    # All the time is taken by two collectives, if there are any.
    assert rates(fast).latency_s < 0.6 * RATES.latency_s
    assert rates(dataclasses.replace(fast, collectives=())).latency_s == pytest.approx(RATES.latency_s)


def test_what_xla_partitions_is_measured_though_its_prediction_is_bad() -> None:
    slow = Work(1e12, 1e12, ())
    block_candidates = [
        dataclasses.replace(
            block,
            candidates=tuple(
                dataclasses.replace(each, work=slow, lower_bound=Work(0.0, 0.0, ()), predicted="a sort")
                if number == 0
                else each
                for number, each in enumerate(block.candidates)
            ),
        )
        for block in two_layer_candidates()
    ]
    asked: list[HloModule] = []

    def profiles(modules: Sequence[HloModule], samples: Samples = None, /) -> list[Profile]:
        asked.extend(modules)
        return [MEASURED] * len(modules)

    PlanSearch(CandidateCosts(block_candidates, two_layer_boundaries(), RATES, profiles, 1.5)).best(1, None)
    assert any(module is block_candidates[0].candidates[0].module for module in asked)


def test_where_everything_is_known_nothing_is_said() -> None:
    assert _said(choosing(Recorded(1.2), math.inf)) == ""


def test_when_the_time_is_over_nothing_is_measured_and_there_is_a_plan_all_the_same() -> None:
    recorded = Recorded(1.2)
    over = TimeBudget(0.0)

    def profiles(modules: Sequence[HloModule], samples: Samples = None, /) -> list[Profile | None]:
        return [None] * len(modules) if over.is_over else list(recorded(modules, samples))

    chosen = PlanSearch(
        CandidateCosts(two_layer_candidates(), two_layer_boundaries(), RATES, profiles, 1.5, budget=over)
    )
    assert math.isfinite(chosen.best(1, None)[0].time_s)
    assert recorded.asked == []
    assert "planning_budget_s was over: not every block has a strategy that was measured" in _said(chosen)


def test_when_the_time_is_over_the_best_plan_of_what_was_measured_is_taken_with_its_distance_from_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = choosing(Recorded(1.2), 10.0)
    monkeypatch.setattr(TimeBudget, "is_over", True)
    plan = chosen.best(1, None)[0]
    assert not chosen.costs.unmeasured(plan.choices)
    assert "planning_budget_s was over: strategies that were not measured could make a plan up to" in _said(chosen)


def test_measuring_ends_when_what_is_left_is_expected_to_gain_little(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for enough in (1.0, 1.3):
        monkeypatch.setattr(plan_search, "_ENOUGH", enough)
        recorded = [Recorded(2.0, seed) for seed in range(5)]
        for each in recorded:
            choosing(each, 4.0).best(1, None)
        counts.append(sum(len(each.asked) for each in recorded))
    assert counts[1] < counts[0]


def test_of_each_kind_the_candidate_with_the_least_estimate_is_measured_at_first() -> None:
    recorded = Recorded(1.2)
    costs = CandidateCosts(two_layer_candidates(), two_layer_boundaries(), RATES, recorded, 1.5)
    computing_s = [estimated_s(dataclasses.replace(each.work, collectives=()), RATES) for each in costs.candidates]
    for numbers in {tuple(each) for each in costs.numbers}:
        (first,) = set(recorded.asked) & set(numbers)
        assert computing_s[first] == min(computing_s[number] for number in numbers)


def test_parts_that_programs_show_to_communicate_less_communicate_nothing_at_least() -> None:
    costs = CandidateCosts(two_layer_candidates(), two_layer_boundaries(), RATES)
    computing = CandidateCosts(
        two_layer_candidates(),
        two_layer_boundaries(),
        dataclasses.replace(RATES, latency_s=0.0, link_bytes_per_s=math.inf),
    )
    before = costs.costs()
    costs.own_s = dict.fromkeys(range(len(costs.candidates)), -1.0)
    kinds = [costs.between.pair(edge, (0,) * len(costs.numbers))[0] for edge in costs.boundaries.crossings]
    costs.pairs_s = {(kind, 0, 1): -1.0 for kind in kinds}
    assert costs.costs() == pytest.approx(computing.costs(), rel=1e-6)
    assert costs.costs() != pytest.approx(before, rel=1e-6)
    assert min(table.table.min() for table in costs.between_s()) == 0
