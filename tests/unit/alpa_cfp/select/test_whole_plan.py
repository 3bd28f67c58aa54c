"""The chosen plan is one whose whole program compiles and fits, whatever its skeletons say."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from alpa_cfp.database import Profile, StepTimeline, utc_now
from alpa_cfp.errors import NoRunnablePlanError
from alpa_cfp.plan.caveats import Caveats
from alpa_cfp.search import MemoryBudgetError, MemoryUse, Solution
from alpa_cfp.select.measured_plan import MeasuredPlan
from alpa_cfp.select.refinement import Refinement
from alpa_cfp.select.whole_plan import best_whole
from alpa_cfp.spmd.module.hlo_module import HloModule

FAILED = Profile(status="failed", created_at=utc_now(), failure="crashed", failure_message="it did")


def plan(number: int, seconds: float, needed: int) -> MeasuredPlan:
    solution = Solution((number,), seconds, MemoryUse(needed, 0, 0))
    return MeasuredPlan(solution, seconds, needed, selection_s=seconds)


@dataclass
class Plans:
    """Plans by their skeletons, and what their whole programs need; None for one that cannot be compiled."""

    by_skeletons: Sequence[MeasuredPlan]
    whole_bytes: dict[int, int | None]
    whole_s: dict[int, float] = field(default_factory=dict)
    compiled: list[int] = field(default_factory=list)
    tried: dict[tuple[int, ...], MeasuredPlan] = field(default_factory=dict)
    search: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(caveats=Caveats()))

    @property
    def rounds(self) -> "Plans":
        return self

    def best(self, budget_bytes: int | None) -> MeasuredPlan:
        self.tried = {each.solution.choices: each for each in self.by_skeletons}
        fitting = [
            each for each in self.by_skeletons if budget_bytes is None or (each.needed_bytes or 0) <= budget_bytes
        ]
        if not fitting:
            least = min(each.needed_bytes or 0 for each in self.by_skeletons)
            raise MemoryBudgetError(least, budget_bytes or 0, (least, 0, 0), ("a block",) * 3)
        return min(fitting, key=lambda each: each.selection_s or 0.0)

    def planned(self, choices: Sequence[int]) -> int:
        return choices[0]

    def profiles(self, modules: Sequence[int]) -> list[Profile]:
        needed = self.whole_bytes[modules[0]]
        self.compiled.append(modules[0])
        if needed is None:
            return [FAILED]
        sizes = {"argument_bytes": needed, "output_bytes": 0, "aliased_bytes": 0, "temporary_bytes": 0}
        return [
            Profile(
                status="measured",
                created_at=utc_now(),
                samples_s=(self.whole_s.get(modules[0], 9.0),),
                compile_s=0.1,
                **sizes,
            )
        ]


def timeline_of(program: HloModule) -> StepTimeline:
    return StepTimeline(float(cast(int, program)), 0.0, 0.0, 0.0, 0.0, (), ())


def chosen(plans: Plans, budget_bytes: int | None) -> MeasuredPlan:
    return best_whole(cast(Refinement, plans), budget_bytes, timeline_of)


FAST_AND_SMALL = (plan(0, 1.0, 100), plan(1, 2.0, 50))


def test_a_plan_has_the_seconds_and_the_memory_of_its_whole_program() -> None:
    found = chosen(Plans(FAST_AND_SMALL, {0: 110, 1: 60}), None)
    assert (found.solution.choices, found.measured_s, found.needed_bytes) == ((0,), 9.0, 110)


def test_a_plan_has_the_timeline_of_its_own_whole_program() -> None:
    for budget_bytes, number in ((None, 0.0), (105, 1.0)):
        found = chosen(Plans(FAST_AND_SMALL, {0: 110, 1: 60}), budget_bytes).timeline
        assert found is not None
        assert found.step_s == number


def test_a_plan_that_needs_more_whole_than_the_budget_is_not_taken() -> None:
    assert chosen(Plans(FAST_AND_SMALL, {0: 110, 1: 60}), 105).solution.choices == (1,)


def test_a_plan_whose_whole_program_cannot_be_compiled_costs_that_plan_only() -> None:
    plans = Plans(FAST_AND_SMALL, {0: None, 1: 60})
    assert chosen(plans, None).solution.choices == (1,)
    (caveat,) = plans.search.caveats.all
    assert "the whole program of a faster plan cannot be compiled for the target" in caveat.text
    with pytest.raises(NoRunnablePlanError, match="it did"):
        chosen(Plans(FAST_AND_SMALL, {0: None, 1: None}), None)


def test_where_none_fits_the_error_says_what_the_compiler_says_of_the_smallest_plan() -> None:
    with pytest.raises(MemoryBudgetError, match="That is what the compiler says of that plan") as error:
        chosen(Plans(FAST_AND_SMALL, {0: 200, 1: 100}), 55)
    assert (error.value.budget_bytes, error.value.least_bytes) == (55, 100)


def test_a_plan_that_fits_by_its_whole_program_though_not_by_shorter_ones_is_taken() -> None:
    assert chosen(Plans(FAST_AND_SMALL, {0: 90, 1: 40}), 45).solution.choices == (1,)


def test_a_plan_whose_whole_program_is_slower_than_its_shorter_ones_say_is_compared_with_the_next() -> None:
    plans = Plans(FAST_AND_SMALL, {0: 100, 1: 50}, {0: 3.0, 1: 2.5})
    assert chosen(plans, None).solution.choices == (1,)
    assert plans.compiled == [0, 1]


def test_no_further_whole_program_is_compiled_if_it_could_not_be_faster() -> None:
    plans = Plans(FAST_AND_SMALL, {0: 100, 1: 50}, {0: 1.5, 1: 1.0})
    assert chosen(plans, None).solution.choices == (0,)
    assert plans.compiled == [0]
