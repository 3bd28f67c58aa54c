"""The best plans are compiled and run whole: the fastest that really fits is taken."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from alpa_cfp.costs import Rates
from alpa_cfp.database import Collective, Profile, utc_now
from alpa_cfp.errors import NoRunnablePlanError
from alpa_cfp.planner.plan_programs import with_plan
from alpa_cfp.search import MemoryBudgetError, Solution
from alpa_cfp.select import refinement as refining
from alpa_cfp.select import trial_rounds
from alpa_cfp.select.baselines import baselines
from alpa_cfp.select.candidate_costs import CandidateCosts
from alpa_cfp.select.exploration import Prospects
from alpa_cfp.select.measured_plan import MeasuredPlan
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.select.profile_source import Samples
from alpa_cfp.select.refinement import Refinement
from alpa_cfp.select.trial_rounds import TrialRounds
from alpa_cfp.spmd.module.hlo_module import HloModule
from unit.alpa_cfp.training_steps import (
    MESH,
    two_layer_blocks,
    two_layer_boundaries,
    two_layer_candidates,
    two_layer_module,
)

pytestmark = pytest.mark.slow

RATES = Rates()
Choices = tuple[int, ...]


@cache
def planned(choices: Choices) -> HloModule:
    """The step with the candidates of these numbers."""
    strategies = [
        block.candidates[choice].strategy for block, choice in zip(two_layer_candidates(), choices, strict=True)
    ]
    return with_plan(two_layer_module(), two_layer_blocks(), MESH, strategies)


FAILED = Profile(status="failed", created_at=utc_now(), failure="crashed", failure_message="it did\nso")


def measured(samples_s: tuple[float, ...], argument_bytes: int = 0, collectives: int = 1) -> Profile:
    return Profile(
        status="measured",
        created_at=utc_now(),
        samples_s=samples_s,
        compile_s=0.1,
        argument_bytes=argument_bytes,
        output_bytes=0,
        aliased_bytes=0,
        temporary_bytes=0,
        collectives=(Collective("all-reduce", 8, 8, collectives),),
    )


class Machine:
    """Runs whole plans: `time_s` and `needed_bytes` say what each takes by its place in the order of predictions."""

    def __init__(
        self,
        time_s: Callable[[float], float] = lambda predicted: predicted,
        needed: Callable[[int], int] = lambda predicted: predicted,
        collectives: Callable[[Choices], int] = lambda choices: 1,
        fails: Callable[[Choices], bool] = lambda choices: False,
        later_samples: Callable[[Choices], Sequence[float]] = lambda choices: (),
        micro_batches: int = 1,
        further_s: Sequence[float] = (),
        rates: Rates = RATES,
    ):
        self.choosing = PlanSearch(
            CandidateCosts(
                two_layer_candidates(), two_layer_boundaries(), rates, None, 1.5, micro_batches=micro_batches
            )
        )
        # Predictions before any plan has run.
        self.predictions = self.choosing.problem
        self._time_s, self._needed, self._collectives, self._fails = time_s, needed, collectives, fails
        self._later_samples, self._further_s = later_samples, further_s
        self._choices: dict[int, Choices] = {}
        self._further: dict[int, tuple[HloModule, float]] = {}
        self.rounds: list[list[Choices]] = []

    def planned(self, choices: Sequence[int]) -> HloModule:
        module = planned(tuple(choices))
        self._choices[id(module)] = tuple(choices)
        return module

    def further(self, module: HloModule) -> Sequence[HloModule]:
        """Programs that take what `further_s` says."""
        programs = [replace(module, name=f"further {number}") for number in range(len(self._further_s))]
        self._further |= {id(each): (each, s) for each, s in zip(programs, self._further_s, strict=True)}
        return programs

    def profiles(self, modules: Sequence[HloModule], wanted: Samples = None, /) -> list[Profile]:
        samples = wanted if isinstance(wanted, int) else max(wanted or [1])
        self.rounds.append([self._choices[id(module)] for module in modules if id(module) not in self._further])
        return [
            self._further_profile(self._further[id(module)][1], samples or 1)
            if id(module) in self._further
            else self._profile(self._choices[id(module)], samples or 1)
            for module in modules
        ]

    @staticmethod
    def _further_profile(seconds: float, samples: int) -> Profile:
        return FAILED if math.isnan(seconds) else measured((seconds,) * samples)

    @property
    def run(self) -> list[Choices]:
        """What was run, in order."""
        return list(dict.fromkeys(choices for round_ in self.rounds for choices in round_))

    def _profile(self, choices: Choices, samples: int) -> Profile:
        if self._fails(choices):
            return FAILED
        solution = self.predictions.solution(choices)
        return measured(
            (self._time_s(solution.time_s),) * samples + tuple(self._later_samples(choices)),
            self._needed(solution.memory.total),
            self._collectives(choices),
        )

    def refinement(self, count: int = 3, **changes: Any) -> Refinement:
        blocks, block_candidates = two_layer_blocks(), two_layer_candidates()
        rounds = TrialRounds(
            blocks, block_candidates, MESH, self.choosing, self.profiles, self.planned, self.further, count, 1
        )
        self.made = Refinement(replace(rounds, **changes))
        return self.made

    def best(self, budget_bytes: int | None = None, count: int = 3) -> MeasuredPlan:
        return self.refinement(count).best(budget_bytes)


def free_bytes() -> int:
    """What the best plan without a budget is predicted to need."""
    return Machine().best().solution.memory.total


def least_bytes() -> int:
    """The least that any plan is predicted to need."""
    with pytest.raises(MemoryBudgetError) as caught:
        Machine().choosing.best(1, 1)
    return caught.value.least_bytes


def test_where_predictions_are_right_the_best_predicted_plan_is_taken() -> None:
    machine = Machine()
    assert machine.best().solution.choices == machine.choosing.best(1, None)[0].choices


def test_the_fastest_measured_plan_is_taken_though_another_was_predicted_to_be() -> None:
    machine = Machine(lambda predicted: 1 / predicted)
    best = machine.best()
    assert len(machine.run) > 1
    times = {choices: machine.predictions.time(choices) for choices in machine.run}
    assert times[best.solution.choices] == max(times.values())


def test_plans_that_are_nearly_as_fast_run_again_at_the_end_and_then_the_fastest_alone() -> None:
    machine = Machine(lambda predicted: 1.0)
    machine.best()
    assert len(machine.run) > 1
    assert set(machine.rounds[-2]) == set(machine.run)
    assert len(set(machine.rounds[-1])) == 1


def test_a_plan_that_is_clearly_slower_runs_in_one_round_only() -> None:
    best = Machine().best().solution
    machine = Machine()
    fastest = machine.predictions.time(best.choices)
    machine = Machine(lambda predicted: 1.0 if predicted == fastest else 1.2)
    machine.best()
    # The first plan runs beside all that are timed later.
    slow = [choices for choices in machine.run[1:] if machine.predictions.time(choices) != fastest]
    assert slow
    assert all(sum(choices in round_ for round_ in machine.rounds) == 1 for choices in slow)


def test_a_plan_that_the_search_finds_once_it_knows_what_whole_plans_take_is_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = Machine().choosing.best(1, None)[0]
    machine = Machine(lambda predicted: (3 if predicted == first.time_s else 1) * predicted)
    monkeypatch.setattr(machine.choosing, "best", lambda count, budget: [first])
    machine.best(count=1)
    found = machine.run[1:]
    assert found
    assert all("from" in machine.made.tried[choices].name for choices in found)


def test_the_last_search_proposes_a_plan_that_has_been_run() -> None:
    machine = Machine(lambda predicted: 1 / predicted)
    machine.best()
    assert machine.choosing.best(1, None)[0].choices in machine.run


def test_each_plan_that_is_tried_has_been_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there would be a better plan to run after the last round."""
    machine = Machine()
    kinds = len(machine.predictions.variables)
    others = iter([tuple(number if kind == 0 else 0 for kind in range(kinds)) for number in range(1, 20)])
    problem = machine.predictions
    monkeypatch.setattr(machine.choosing, "best", lambda count, budget: [problem.solution(next(others))])
    machine.best(count=1)
    assert all(plan.selection_s is not None for plan in machine.made.tried.values())


def test_samples_beyond_those_of_a_round_decide_nothing_in_it() -> None:
    """Another program's plan, or an earlier run, may have left more of them in the database."""
    before = Machine(lambda predicted: 1.0)
    before.best()
    slow = before.run[-1]
    machine = Machine(lambda predicted: 1.0, later_samples=lambda choices: [1e-3] * 99 if choices == slow else [])
    machine.best()
    assert machine.rounds == before.rounds


def test_of_plans_that_are_as_fast_the_one_with_least_communication_is_taken() -> None:
    last: list[Choices] = []

    def machine() -> Machine:
        return Machine(
            lambda predicted: 1.0, lambda predicted: 1, collectives=lambda choices: 1 if choices in last else 2
        )

    before = machine()
    before.best()
    last.append(before.run[-1])
    assert machine().best().solution.choices == last[0]


@pytest.mark.parametrize("is_worth_it", [False, True])
def test_of_plans_that_are_as_fast_one_that_needs_less_memory_is_taken_though_it_communicates_more(
    is_worth_it: bool,
) -> None:
    before = Machine(lambda predicted: 1.0)
    before.best()

    def predicted_bytes(choices: Choices) -> int:
        return before.predictions.solution(choices).memory.total

    small = predicted_bytes(before.run[-1])
    assert any(predicted_bytes(choices) != small for choices in before.run)
    machine = Machine(
        lambda predicted: 1.0,
        needed=lambda predicted: (900 if is_worth_it else 990) if predicted == small else 1000,
        collectives=lambda choices: 2 if predicted_bytes(choices) == small else 1,
    )
    assert (predicted_bytes(machine.best().solution.choices) == small) == is_worth_it


def test_the_plan_says_what_was_measured() -> None:
    best = Machine(lambda predicted: 0.25, lambda predicted: 77).best()
    assert (best.measured_s, best.needed_bytes) == (0.25, 77)


def test_of_several_micro_batches_the_first_is_a_step_and_each_other_takes_what_its_programs_take() -> None:
    best = Machine(lambda predicted: 0.25, micro_batches=4, further_s=(0.125, 0.0625)).best()
    assert best.measured_s == 0.25 + 3 * (0.125 + 0.0625)


@pytest.mark.parametrize("fails", [False, True])
def test_where_a_further_micro_batch_cannot_be_measured_what_is_done_once_a_step_is_estimated(fails: bool) -> None:
    machine = Machine(lambda predicted: 0.25, micro_batches=4, further_s=(math.nan,) if fails else ())
    best = machine.best()
    assert best.measured_s == machine.choosing.costs.step_time_s(best.solution.choices, 0.25)
    assert 0.25 < machine.choosing.costs.step_time_s(best.solution.choices, 0.25) < 4 * 0.25


def test_plans_that_need_more_than_predicted_are_searched_for_again_with_less() -> None:
    budget = int(2.1 * least_bytes())
    # Otherwise the first plan fits already.
    assert free_bytes() > budget / 2
    best = Machine(needed=lambda predicted: 2 * predicted).best(budget)
    assert best.needed_bytes is not None
    assert best.needed_bytes <= budget


def test_where_less_is_needed_than_predicted_a_budget_below_all_predictions_may_do() -> None:
    budget = int(0.8 * least_bytes())
    best = Machine(needed=lambda predicted: predicted // 2).best(budget)
    assert best.needed_bytes is not None
    assert best.needed_bytes <= budget


def test_where_nothing_fits_the_error_says_what_the_least_plan_really_needs() -> None:
    least = least_bytes()
    with pytest.raises(MemoryBudgetError) as caught:
        Machine(needed=lambda predicted: predicted + 1000).best(least)
    assert caught.value.least_bytes == least + 1000
    best = Machine(needed=lambda predicted: predicted + 1000).best(least + 1000)
    assert best.needed_bytes == least + 1000


def test_where_nothing_fits_baselines_are_compiled_and_the_smallest_that_the_compiler_knows_is_named() -> None:
    machine = Machine(needed=lambda predicted: 10**9 - predicted)
    with pytest.raises(MemoryBudgetError, match="That is what the compiler says of that plan") as caught:
        machine.best(least_bytes())
    smallest = max(machine.predictions.memory(choices).total for choices in machine.run)
    assert caught.value.least_bytes == 10**9 - smallest
    by_hand = baselines(two_layer_blocks().blocks, two_layer_candidates(), machine.predictions, MESH).values()
    three = sorted(by_hand, key=lambda plan: (plan.memory.total, plan.choices))[:3]
    assert {plan.choices for plan in three} <= set(machine.run)


def test_a_plan_that_cannot_be_run_whole_is_not_taken() -> None:
    first = Machine().best().solution.choices
    best = Machine(fails=lambda choices: choices == first).best()
    assert best.solution.choices != first
    assert best.measured_s is not None


@pytest.mark.parametrize("budget", [None, 10**9])
def test_where_no_plan_can_be_run_whole_the_error_says_why(budget: int | None) -> None:
    with pytest.raises(NoRunnablePlanError, match="crashed: it did\\. Where memory"):
        Machine(fails=lambda choices: True).best(budget)


def test_what_was_run_whole_is_known_by_name_afterwards() -> None:
    first = Machine().best().solution.choices
    machine = Machine(fails=lambda choices: choices == first)
    refinement = machine.refinement()
    best = refinement.best(None)
    assert list(refinement.tried) == machine.run
    names = {choices: each.name for choices, each in refinement.tried.items()}
    assert len(set(names.values())) == len(names)
    assert names[first].startswith("best predicted")
    assert refinement.tried[first].failure == "crashed: it did"
    assert refinement.tried[best.solution.choices] == best


def test_a_baseline_that_is_the_best_predicted_one_has_both_names() -> None:
    refinement = Machine().refinement()
    refinement.best(None)
    problem = refinement.search.problem
    found = baselines(two_layer_blocks().blocks, two_layer_candidates(), problem, MESH)
    both = {name: plan.choices for name, plan in found.items() if plan.choices in refinement.tried}
    assert both
    assert all(name in refinement.tried[choices].name for name, choices in both.items())


def test_data_parallelism_is_timed_where_another_baseline_that_is_predicted_alike_is_not() -> None:
    machine = Machine(rates=replace(RATES, latency_s=1e-6))
    found = baselines(two_layer_blocks().blocks, two_layer_candidates(), machine.predictions, MESH)
    best = machine.best(count=1).solution
    plain = found["data parallel"]
    assert 1.15 < plain.time_s / best.time_s < 1.5
    assert plain.choices in machine.run
    others = [plan for name, plan in found.items() if name != "data parallel" and plan.time_s > 1.15 * best.time_s]
    assert others
    assert not {plan.choices for plan in others} & set(machine.run)


def test_a_baseline_that_is_predicted_to_be_close_is_tried_only_if_it_is_expected_to_be_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial_rounds, "_PLAUSIBLE", 3.0)
    monkeypatch.setattr(trial_rounds, "_WORTH_A_LOOK", 3.0)
    monkeypatch.setattr(trial_rounds, "_AT_ONCE", 20)
    run = {}
    for gain in (0.0, 1.0):
        monkeypatch.setattr(trial_rounds, "worthwhile", lambda taken_s, misses, gain=gain: gain)
        machine = Machine()
        best = machine.best(count=1).solution
        run[gain] = set(machine.run)
    found = baselines(two_layer_blocks().blocks, two_layer_candidates(), Machine().predictions, MESH)
    others = (plan for name, plan in found.items() if name != "data parallel" and plan.choices != best.choices)
    close = {plan.choices for plan in others if plan.time_s < 3 * best.time_s}
    assert close
    assert close <= run[0.0]
    assert not close & run[1.0]


@pytest.mark.parametrize(("slower", "expected"), [(2.0, [0.003, 0.006, 0.012, 0.02]), (0.5, [0.003] * 4)])
def test_plans_have_to_promise_twice_as_much_for_each_time_that_those_before_were_not_faster_up_to_a_bound(
    slower: float, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the plans after the first, each takes so many times as long as the one before."""
    asked, order = list[float](), dict[Choices, float]()
    problem = Machine().predictions
    first = Machine().choosing.best(1, None)[0].choices
    others = iter([(number, *first[1:]) for number in range(len(problem.variables[0].time_s)) if number != first[0]])

    def prospects(*args: object, least_gain: float, **kwargs: object) -> Prospects:
        asked.append(least_gain)
        return Prospects((next(others),), least_gain)

    machine = Machine()
    monkeypatch.setattr(machine, "_profile", lambda choices, samples: _taking(order, choices, slower, samples))
    monkeypatch.setattr(trial_rounds, "prospects", prospects)
    machine.refinement(count=1, has_baselines=False).best(None)
    assert asked == pytest.approx(expected)


def _taking(order: dict[Choices, float], choices: Choices, factor: float, samples: int) -> Profile:
    seconds = order.setdefault(choices, 1e-3 * factor ** len(order))
    return measured((seconds,) * samples)


def test_data_parallelism_is_expected_before_the_search_looks_at_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, seen = Machine(rates=replace(RATES, latency_s=1e-6)), list[str]()
    plain = baselines(two_layer_blocks().blocks, two_layer_candidates(), machine.predictions, MESH)["data parallel"]
    refinement = machine.refinement(expect=lambda programs: seen.extend(each.name for each in programs))
    original = PlanSearch.best

    def best(self: PlanSearch, count: int, budget_bytes: int | None) -> list[Solution]:
        seen.append("search")
        return original(self, count, budget_bytes)

    monkeypatch.setattr(PlanSearch, "best", best)
    refinement.best(None)
    assert seen.index("search") == 1
    assert plain.choices in machine.run


def _warnings(machine: Machine) -> str:
    return "\n".join(caveat.text for caveat in machine.choosing.caveats.all if caveat.may_cost)


@pytest.mark.parametrize("budget", [None, 10**9])
def test_where_no_whole_plan_has_a_profile_the_best_predicted_one_is_taken_with_a_warning(budget: int | None) -> None:
    machine = Machine()
    machine.profiles = lambda modules, samples=None, /: [None] * len(modules)  # type: ignore[method-assign]
    assert machine.best(budget).solution.choices == machine.choosing.best(1, budget)[0].choices
    assert "no plan was timed end to end, because none of them has a profile" in _warnings(machine)
    held = "no plan could be held against the memory budget by its compiled program"
    assert (held in _warnings(machine)) == (budget is not None)


def test_where_every_plan_needs_more_than_predicted_the_least_one_is_taken_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    least, budget = least_bytes(), free_bytes()
    monkeypatch.setattr(refining, "_ATTEMPTS", 1)
    attempts: list[int] = []
    search = Refinement._least

    def searched(refinement: Refinement, budget_bytes: int) -> Sequence[Solution]:
        attempts.append(budget_bytes)
        return search(refinement, budget_bytes)

    monkeypatch.setattr(Refinement, "_least", searched)
    machine = Machine(needed=lambda predicted: least if attempts else budget + 1)
    assert machine.best(budget).needed_bytes == least
    assert "every plan needed more memory than predicted: the one of least memory is taken" in _warnings(machine)


def left_to_xla(machine: Machine, *, predicted: bool, compiled: bool = False) -> Machine:
    """`machine`, whose whole programs XLA partitions; whether their collectives are predicted, and then read."""
    plan, profiles, made = machine.planned, machine.profiles, list[HloModule]()

    def planned(choices: Sequence[int]) -> HloModule:
        module = plan(choices)
        assert module.partitioned is not None
        program = replace(
            module.partitioned,
            partitioner="xla",
            fallback_reason="a sort",
            collectives=(),
            prediction=module.partitioned if predicted else None,
        )
        made.append(replace(module, partitioned=program))
        machine._choices[id(made[-1])] = tuple(choices)
        return made[-1]

    def read(modules: Sequence[HloModule], samples: Samples = None, /) -> list[Profile]:
        return [replace(profile, collectives_compiled=compiled) for profile in profiles(modules, samples)]

    machine.planned, machine.profiles = planned, read  # type: ignore[method-assign]
    return machine


@pytest.mark.parametrize(("compiled", "collectives"), [(True, 1), (False, None)])
def test_collectives_of_a_plan_that_xla_partitions_are_those_of_its_compiled_program_or_not_known(
    *, compiled: bool, collectives: int | None
) -> None:
    machine = left_to_xla(Machine(), predicted=True, compiled=compiled)
    assert machine.best().collectives == collectives
