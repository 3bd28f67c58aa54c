"""The search for the best plans, which measures only the candidates that it needs (CFP, sections 5 and 6).

Takes the candidates of a program, their boundaries and a source of profiles; gives the cheapest plans. Times are drawn
from what is known, and candidates of the best plans by these are measured, until those that are not measured are
expected to make plans hardly faster. What programs of proposed plans compute and communicate, and what whole plans that
were timed took, corrects the costs, and the next search knows of it. Invariant: the same profiles give the same plans,
unless a search meets its time limit.
"""

import itertools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from alpa_cfp.plan.caveats import Caveats
from alpa_cfp.search import MEMORY_BYTES, MemoryBudgetError, NoPlanError, SearchProblem, Solution
from alpa_cfp.select.bounded_search import BoundedSearch
from alpa_cfp.select.candidate_costs import CandidateCosts, Choices
from alpa_cfp.select.plan_variants import of_one_state_sharding
from alpa_cfp.select.planned_program import PlannedProgram
from alpa_cfp.select.posterior import Corrections
from alpa_cfp.select.search_caveats import add_search_caveats, warn_of_time, with_reasons
from alpa_cfp.select.search_problem import make_problem
from alpa_cfp.select.seen_programs import SeenPrograms
from alpa_cfp.spmd.module.hlo_module import HloModule

logger = logging.getLogger(__name__)

# How often possible times are drawn to see what more measurements could gain.
_DRAWS = 6
# The share of the gain that is expected of measuring which is measured at once.
_MOST_OF_GAIN = 0.7
# A plan of measured candidates is taken if no other one could be faster by more than this factor.
_ENOUGH = 1.01
# The plans whose programs are looked at for one search, at most: the first number, or the second if they have more
# blocks than the third, all together. By what factor another plan has to be predicted to be faster.
_MOST_LOOKS, _LEAST_LOOKS, _MOST_BLOCKS = 6, 3, 320
_WORTH_LOOKING = 1.005
# Plans like the best one are looked at if they are predicted to take no more than so many times as long.
_PLAUSIBLE = 1.1
# Reasons why there is no plan without a candidate.
_REASONS = {
    NoPlanError: "nothing else of it can be run",
    MemoryBudgetError: "nothing else fits into the memory budget",
}


class PlanSearch:
    """Searches for the plans of one program, and measures candidates as needed.

    Args:
        costs: The costs of the candidates of its blocks.
        limit_s, memory_bytes: The limits of one search; after one that is not exact, others take a part of the time.
        caveats: Receives what the plan was chosen without.
        baselines: Gives hand-written plans by name for a search problem. The best of them is taken if a search that is
            not exact finds nothing better.
        planned: Gives the program of a plan, whose work is then counted; None: it is taken to be that of the plan's
            parts.

    Attributes:
        costs, caveats: As given.
        gap_s: An upper bound on how much faster another plan could be predicted to be than the cheapest plan that was
            found last; 0 if the search was exact.
    """

    def __init__(
        self,
        costs: CandidateCosts,
        *,
        limit_s: float = math.inf,
        memory_bytes: int = MEMORY_BYTES,
        caveats: Caveats | None = None,
        baselines: Callable[[SearchProblem], Mapping[str, Solution]] | None = None,
        planned: Callable[[Sequence[int]], PlannedProgram] | None = None,
    ) -> None:
        self.costs, self._bounded = costs, BoundedSearch(limit_s, memory_bytes, baselines)
        self.caveats, self.gap_s = Caveats() if caveats is None else caveats, 0.0
        self._seen = SeenPrograms(costs, planned)
        # How many candidates were measured when more were not worth it, and for which memory budget.
        self._enough_measured: tuple[int, int | None] | None = None

    @property
    def limits(self) -> tuple[float, int]:
        """The limits of one search: seconds, and bytes."""
        return self._bounded.limit_s, self._bounded.memory_bytes

    @property
    def problem(self) -> SearchProblem:
        """The search problem, with the times known so far."""
        return self._problem()

    def best(self, count: int, budget_bytes: int | None) -> list[Solution]:
        """The cheapest plans within a budget, up to `count`, of measured candidates only.

        If programs of plans are known, these are the best of those that the search has proposed: it proposes the
        cheapest plan, is corrected by what the program of that plan takes, and proposes again, until that is a plan
        whose program it knows, or hardly faster than the best of these. Plans like that with one state sharding for all
        blocks are looked at, too. Otherwise an alternative is the cheapest plan
        without the candidate that the first plan has for one kind of block; the kinds that take most of its time come
        first.

        Raises:
            MemoryBudgetError: no plan fits into the budget.
        """
        first = self._cheapest(budget_bytes)
        if self._seen.is_blind:
            return self._alternatives(first, count, budget_bytes)
        looks = seen = size = 0
        while not self.costs.budget.is_over and (
            looks < _LEAST_LOOKS or (looks < _MOST_LOOKS and seen + size <= _MOST_BLOCKS)
        ):
            self.look_at(first.choices)
            size = self._seen.blocks(first.choices)
            looks, seen = looks + 1, seen + size
            first = self._cheapest(budget_bytes)
            known = self._looked_at(budget_bytes)
            if first.choices in self._seen or (
                known and known[0].time_s <= _WORTH_LOOKING * self._time_s(first.choices)
            ):
                break
        else:
            self.look_at(first.choices)
        self._look_at_one_state_sharding(budget_bytes, first)
        return self._looked_at(budget_bytes, first)[:count]

    def _look_at_one_state_sharding(self, budget_bytes: int | None, first: Solution) -> None:
        """Looks at plans like the best one that was looked at, with one state sharding for all blocks.

        What blocks communicate alike goes together, which their programs tell and their parts do not.
        """
        best = next(iter(self._looked_at(budget_bytes, first)), None)
        if best is None or self.costs.budget.is_over:
            return
        for choices in of_one_state_sharding(self.costs.block_candidates, best.choices):
            if not self.costs.unmeasured(choices) and self._time_s(choices) <= _PLAUSIBLE * best.time_s:
                self.look_at(choices)

    def _looked_at(self, budget_bytes: int | None, first: Solution | None = None) -> list[Solution]:
        """The plans within a budget whose programs were looked at, the best predicted one first.

        Args:
            budget_bytes: The budget.
            first: The one that may have candidates that were not measured.
        """
        problem = self._problem()
        of_first = None if first is None else first.choices
        able = (each for each in self._seen if each == of_first or not self.costs.unmeasured(each))
        plans = [self._predicted(choices, problem) for choices in able]
        runnable = [plan for plan in plans if math.isfinite(plan.time_s)]
        fitting = [plan for plan in runnable if budget_bytes is None or plan.memory.total <= budget_bytes]
        return sorted(fitting, key=lambda plan: (plan.time_s, plan.choices))

    def measure_candidates(self, budget_bytes: int | None) -> None:
        """Measures candidates, as `best` does before it looks at plans.

        Raises:
            MemoryBudgetError: no plan fits into the budget.
        """
        self._cheapest(budget_bytes)

    def look_at(self, choices: Choices) -> None:
        """Counts what the program of a plan computes and communicates, if that is known before it is compiled."""
        self._seen.look_at(choices)

    def is_seen(self, choices: Choices) -> bool:
        """Whether nothing more is known of a plan once it is looked at."""
        return self._seen.is_blind or choices in self._seen

    def program(self, choices: Choices) -> HloModule | None:
        """The partitioned program of a plan, if it was looked at whole."""
        return self._seen.whole(choices)

    def predicted(self, choices: Choices) -> Solution:
        """A plan with its time by what its program communicates, if that is known."""
        return self._predicted(choices, self._problem())

    def cheapest_with(self, known: Corrections, budget_bytes: int | None) -> Choices:
        """The cheapest plan, if these times hold, also for candidates that were not measured.

        Raises:
            MemoryBudgetError: no plan fits into the budget.
            NoPlanError: a block has no candidate that can be run.
        """
        return self._bounded.of_drawn(self._problem(margin=1.0, known=known), budget_bytes).choices

    def time_with(self, choices: Choices, known: Corrections) -> float:
        """The time of a plan whose program was looked at, if these times hold."""
        return self.costs.plan_s(choices, self._seen.communication_s(choices), self._seen.beyond_s(choices), known)

    def _predicted(self, choices: Choices, problem: SearchProblem) -> Solution:
        solution = problem.solution(choices)
        # A plan with a candidate that cannot be run takes forever.
        if choices not in self._seen or math.isinf(solution.time_s):
            return solution
        return replace(solution, time_s=self._time_s(choices))

    def _time_s(self, choices: Choices) -> float:
        """The time of a plan by its program; by what other programs tell if that is not known."""
        return self.costs.plan_s(choices, self._seen.communication_s(choices), self._seen.beyond_s(choices))

    def _alternatives(self, first: Solution, count: int, budget_bytes: int | None) -> list[Solution]:
        """A plan, and the cheapest ones without one of its candidates."""
        found = {first.choices: first}
        for kind in self._kinds_by_time(first)[: count - 1]:
            number = self.costs.numbers[kind][first.choices[kind]]
            try:
                other = self._search(self._problem(only_measured=True, without=number), budget_bytes)
            except (NoPlanError, MemoryBudgetError) as error:
                self.caveats.note(
                    f"alternatives for block {kind} and equal blocks are not among the plans that are compared end "
                    f"to end: {_REASONS[type(error)]}"
                )
            else:
                found.setdefault(other.choices, other)
        return [first, *sorted(list(found.values())[1:], key=lambda plan: plan.time_s)]

    def observe(self, choices: Choices, seconds: float) -> None:
        """Takes the measured time of a whole plan into account.

        Args:
            choices: The plan.
            seconds: What a step with one micro-batch takes, with the overhead of its program.
        """
        self.look_at(choices)
        self.costs.add_plan(choices, self._seen.communication_s(choices), self._seen.beyond_s(choices), seconds)

    def _problem(
        self,
        *,
        only_measured: bool = False,
        without: int | None = None,
        known: Corrections | None = None,
        margin: float | None = None,
    ) -> SearchProblem:
        """The search problem.

        Args:
            only_measured: Whether plans are of measured candidates only; otherwise the others count as faster than they
                are known to be.
            without: The number of a candidate that is in no plan.
            known: The times that hold; None for the means.
        """
        costs = self.costs.costs(only_measured=only_measured, known=known, margin=margin)
        if without is not None:
            costs[without] = math.inf
        times = [[costs[i] for i in numbers] for numbers in self.costs.numbers]
        return make_problem(self.costs.block_candidates, self.costs.boundaries, times, self.costs.between_s(known))

    def _cheapest(self, budget_bytes: int | None) -> Solution:
        """The cheapest plan of measured candidates; others are expected to be faster by less than `_ENOUGH`."""
        while True:
            found = self._search(self._problem(), budget_bytes)
            wanted = self.costs.unmeasured(found.choices)
            if wanted:
                try:
                    measured = self._search(self._problem(only_measured=True), budget_bytes)
                except (NoPlanError, MemoryBudgetError):
                    measured = None
                if measured is None or measured.time_s > _ENOUGH * found.time_s:
                    if self.costs.budget.is_over:
                        self._add_budget_caveat(found, measured)
                    elif measured is None or (wanted := self._worth_measuring(budget_bytes)):
                        self.costs.measure(sorted(wanted))
                        continue
                found = measured or found
            self.gap_s = found.gap_s
            return found

    def _worth_measuring(self, budget_bytes: int | None) -> set[int]:
        """The candidates by which the best plan could become faster by more than a share that is worth it: those from
        which most of the gain is expected. None if the gain that is expected of all of them is less, and until others
        have been measured.
        """
        state = self.costs.measured, budget_bytes
        if state == self._enough_measured:
            return set()
        random, gain, of = np.random.default_rng(self.costs.measured), 0.0, dict[int, float]()
        for _ in range(_DRAWS):
            known = self.costs.drawn(random, alone=True)
            best = self._bounded.of_drawn(self._problem(margin=1.0, known=known), budget_bytes)
            wanted = self.costs.unmeasured(best.choices)
            if wanted:
                other = self._bounded.of_drawn(self._problem(only_measured=True, known=known), budget_bytes)
                own = max(1 - best.time_s / other.time_s, 0.0)
                gain += own / _DRAWS
                for number in wanted if own > 0 else ():
                    of[number] = of.get(number, 0.0) + own / _DRAWS / len(wanted)
        logger.info("CFP: candidates that are not measured could make plans %.1f%% faster", 100 * gain)
        if gain > _ENOUGH - 1:
            ranked = sorted(of, key=lambda number: (-of[number], number))
            before = itertools.accumulate((of[number] for number in ranked), initial=0.0)
            return {number for number, so_far in zip(ranked, before, strict=False) if so_far < _MOST_OF_GAIN * gain}
        self._enough_measured = state
        return set()

    def _add_budget_caveat(self, optimistic: Solution, measured: Solution | None) -> None:
        """Says what the time for planning was too short for.

        Args:
            optimistic: The cheapest plan, if candidates that are not measured are as fast as they may be.
            measured: The cheapest plan of measured candidates; None if there is none.
        """
        if measured is None:
            warn_of_time(self.caveats, "not every block has a strategy that was measured; estimates chose the plan")
            return
        gain = f"{100 * (1 - optimistic.time_s / measured.time_s):.0f}%"
        warn_of_time(self.caveats, f"strategies that were not measured could make a plan up to {gain} faster")

    def _search(self, problem: SearchProblem, budget_bytes: int | None) -> Solution:
        try:
            return self._bounded.best(problem, budget_bytes)
        except NoPlanError as error:
            raise with_reasons(error, self.costs, [each.name for each in problem.variables]) from error

    def add_caveats(self) -> None:
        """Adds caveats: what the cheapest plan was chosen without. Call it after the last search."""
        costs = self.costs
        add_search_caveats(self.caveats, costs.candidates, costs.seconds, costs.failures, costs.compiled, self.gap_s)

    def _kinds_by_time(self, plan: Solution) -> list[int]:
        """The kinds of blocks, by their share of the time of a plan, largest first."""
        costs = self.costs.costs()
        total: dict[int, float] = {}
        for block, numbers, choice in zip(self.costs.block_candidates, self.costs.numbers, plan.choices, strict=True):
            total[block.kind] = total.get(block.kind, 0.0) + costs[numbers[choice]]
        return sorted(total, key=lambda kind: (-total[kind], kind))
