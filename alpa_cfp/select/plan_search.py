"""Which candidates are measured, and the search for the best plans among all (CFP, sections 5 and 6).

Takes the units of a program, their boundaries and where profiles come from; gives the cheapest plans. Not every
candidate is measured: those that are not count as much faster than estimated, with rates fitted to what has been
measured already, and the search goes on until the best plans consist of measured ones only. So the plans are those that
measuring everything would give, as long as no candidate is faster than its estimate by more than the margin. Invariant:
the same profiles give the same plans, unless a search meets its time limit.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from alpa_cfp.candidates.accumulation import step_time_s
from alpa_cfp.candidates.block_candidates import BlockCandidates, Candidate, distinct
from alpa_cfp.costs import Rates, Work, estimated_s, fitted
from alpa_cfp.database import Profile
from alpa_cfp.plan.caveats import Caveats
from alpa_cfp.quantities import plural
from alpa_cfp.search import MEMORY_BYTES, MemoryBudgetError, NoPlanError, SearchProblem, Solution, search
from alpa_cfp.select.search_problem import Boundaries, make_problem
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import Collective

logger = logging.getLogger(__name__)


class Profiles(Protocol):
    """Gives profiles."""

    def __call__(self, modules: Sequence[HloModule], samples: int | None = None, /) -> Sequence[Profile | None]:
        """The profile of each module, None where there is none to be had.

        Args:
            samples: Of so many samples where they are measured, on one mesh, interleaved, to be told apart by small
                differences; None for what a candidate gets.
        """
        ...


# How many of a kind's candidates are measured before there is anything to fit rates to.
_FIRST = 2
# What a program takes without the overhead of starting it is at least this part of all.
_LEAST_OF_MEASURED = 0.1
# How many reasons why a block has no plan are said.
_NAMED = 3
# Why there is no plan without a candidate.
_REASONS = {
    NoPlanError: "nothing else of it can be run",
    MemoryBudgetError: "nothing else fits into the memory budget",
}


@dataclass(frozen=True, slots=True)
class CandidateTime:
    """What is known of a candidate's time.

    Attributes:
        time_s: What it takes in a step; None where nothing is known.
        measured: Whether it was profiled; otherwise `time_s` is an estimate.
        failure: Why it could not be run, "" where it could, or was not tried.
        compiled: What it communicates by its compiled program, where that was read: XLA has partitioned it.
    """

    time_s: float | None
    measured: bool
    failure: str = ""
    compiled: tuple[Collective, ...] | None = None


class PlanSearch:
    """The plans of a program, measured as far as they have to be.

    Args:
        units: The units of the program.
        boundaries: Their boundaries.
        rates: Of the mesh.
        profiles: Where profiles come from; None: costs are estimates.
        margin: How many times faster than estimated a candidate that is not measured may be; inf measures all.
        limit_s: How long one search may take.
        micro_batches: How many a step has.
        memory_bytes: How much memory the tables of one search may take.
        caveats: Where it is said what was done without.
        plain: Gives plans by name that people write by hand: what is taken is never worse, even where the search is not
            exact.

    Attributes:
        measured: How many programs were asked for.
        gap_s: By how much at most another plan could be predicted to be faster than the cheapest one that was found
            last; 0 where the search was exact.
    """

    def __init__(
        self,
        units: Sequence[BlockCandidates],
        boundaries: Boundaries,
        rates: Rates,
        profiles: Profiles | None,
        margin: float,
        limit_s: float = math.inf,
        micro_batches: int = 1,
        *,
        memory_bytes: int = MEMORY_BYTES,
        caveats: Caveats | None = None,
        plain: Callable[[SearchProblem], Mapping[str, Solution]] | None = None,
    ) -> None:
        self._memory_bytes, self._plain = memory_bytes, plain
        self.caveats, self.gap_s = Caveats() if caveats is None else caveats, 0.0
        self._units, self._boundaries, self._calibrated, self._rates = units, boundaries, rates, rates
        self._profiles, self._margin, self._limit_s = profiles, margin, limit_s
        self._micro_batches = micro_batches
        self._candidates = distinct(units)
        self._numbers = _numbers(units)
        self._seconds: dict[int, float] = {}
        self._failures: dict[int, str] = {}
        self._compiled: dict[int, tuple[Collective, ...]] = {}
        if profiles is not None:
            first = self._first() if math.isfinite(margin) else list(range(len(self._candidates)))
            self._measure(first)

    @property
    def limits(self) -> tuple[float, int]:
        """How long one search may take, and how much memory."""
        return self._limit_s, self._memory_bytes

    @property
    def micro_batches(self) -> int:
        """How many a step has."""
        return self._micro_batches

    @property
    def measured(self) -> int:
        return len(self._seconds)

    @property
    def problem(self) -> SearchProblem:
        """The search problem as far as it is known."""
        return self._problem()

    def _problem(self, without: int | None = None) -> SearchProblem:
        costs = self._costs()
        if without is not None:
            costs[without] = math.inf
        times = [[costs[i] for i in numbers] for numbers in self._numbers]
        # Not with the fitted rates: those depend on what has been measured.
        return make_problem(self._units, self._boundaries, times, self._calibrated, self._micro_batches)

    def best(self, count: int, budget_bytes: int | None) -> list[Solution]:
        """The cheapest plan within a budget, and up to `count - 1` others: the cheapest that do without what this plan
        chooses for one of the kinds of blocks that take most of its time. All are of measured candidates only.

        The plans that come next to the best in cost alone differ from it in what hardly matters.

        Raises:
            MemoryBudgetError: no plan fits into the budget.
        """
        first = self._cheapest(budget_bytes)
        found = {first.choices: first}
        for kind in self._kinds_by_time(first)[: count - 1]:
            number = self._numbers[kind][first.choices[kind]]
            try:
                other = self._cheapest(budget_bytes, without=number)
            except (NoPlanError, MemoryBudgetError) as error:  # then it is a plan without alternative
                self.caveats.note(f"{self._instead(kind)}: {_REASONS[type(error)]}")
            else:
                found.setdefault(other.choices, other)
        return [first, *sorted(list(found.values())[1:], key=lambda plan: plan.time_s)]

    def _cheapest(self, budget_bytes: int | None, without: int | None = None) -> Solution:
        """The cheapest plan, without one of the candidates."""
        while True:
            problem = self._problem(without)
            try:
                found = search(problem, budget_bytes, time_limit_s=self._limit_s, memory_limit_bytes=self._memory_bytes)
            except NoPlanError as error:
                raise self._no_plan(error) from error
            if found.gap_s > 0:
                found = self._no_worse_than_plain(found, problem, budget_bytes)
            if not self.measure([found.choices]):
                if without is None:
                    self.gap_s = found.gap_s
                return found

    def _no_worse_than_plain(self, found: Solution, problem: SearchProblem, budget_bytes: int | None) -> Solution:
        """The plan that a search which was not exact has found, or a plain one that is faster."""
        for name, plan in ({} if self._plain is None else self._plain(problem)).items():
            if plan.time_s < found.time_s and (budget_bytes is None or plan.memory.total <= budget_bytes):
                logger.info("CFP: %s is predicted to be faster than what the search has found", name)
                found = replace(plan, gap_s=max(found.gap_s - (found.time_s - plan.time_s), 0.0))
        return found

    def _no_plan(self, error: NoPlanError) -> NoPlanError:
        """The same with what is known of the reasons."""
        why: dict[str, str] = {}
        for unit, variable in zip(self._units, self._problem().variables, strict=True):
            if variable.name in error.names:
                failures = (self._failures.get(number) for number in self._numbers[unit.block])
                said = dict.fromkeys(failure for failure in failures if failure)
                why[variable.name] = "; ".join(list(said)[:_NAMED]) or "none of its programs has a profile"
        return NoPlanError(error.names, why)

    def _instead(self, kind: int) -> str:
        return f"what else block {kind} and those like it could be is not among the plans that are compared whole"

    def add_caveats(self) -> None:
        """Says what the cheapest plan was chosen without, once all is measured."""
        failed = sum(bool(failure) for failure in self._failures.values())
        if failed:
            self.caveats.note(
                f"{failed} of {plural(len(self._seconds), 'program')} of blocks could not be run, so their strategies "
                "are in no plan"
            )
        missing = sum(
            math.isinf(seconds) and not self._failures.get(number) for number, seconds in self._seconds.items()
        )
        if missing:
            self.caveats.warn(
                f"{missing} of {plural(len(self._seconds), 'program')} of blocks have no profile, so their strategies "
                "are in no plan"
            )
        estimated = [each for number, each in enumerate(self._candidates) if number not in self._compiled]
        self._add_left_to_xla(
            [each.predicted for each in estimated],
            "they are estimated as if each device computed whole what Shardy does not split",
        )
        self._add_left_to_xla(
            [each.unread for each in estimated], "what they communicate is not known, and is in no estimate"
        )
        if self.gap_s > 0:
            self.caveats.warn(
                "the search was not exact, because of its limit of time (search_limit_s) or memory "
                "(search_memory_bytes)"
            )

    def _add_left_to_xla(self, reasons: Sequence[str], but: str) -> None:
        """Says what holds of those candidates for which there is a reason why XLA partitions them."""
        left = [reason for reason in reasons if reason]
        if left:
            self.caveats.warn(
                f"{len(left)} of {plural(len(self._candidates), 'program')} of blocks are left to XLA's partitioner "
                f"({'; '.join(list(dict.fromkeys(left))[:_NAMED])}): {but}"
            )

    def _kinds_by_time(self, plan: Solution) -> list[int]:
        """The kinds of blocks, those first that take most of the time of a plan."""
        costs = self._costs()
        total: dict[int, float] = {}
        for unit, numbers, choice in zip(self._units, self._numbers, plan.choices, strict=True):
            total[unit.kind] = total.get(unit.kind, 0.0) + costs[numbers[choice]]
        return sorted(total, key=lambda kind: (-total[kind], kind))

    def measure(self, plans: Sequence[Sequence[int]]) -> bool:
        """Measure what is not measured of the candidates in some plans; whether there was anything."""
        if self._profiles is None:
            return False
        wanted = {
            numbers[choice] for plan in plans for numbers, choice in zip(self._numbers, plan, strict=True)
        }.difference(self._seconds)
        if wanted:
            self._measure(sorted(wanted))
        return bool(wanted)

    def _first(self) -> list[int]:
        """The fastest candidates of each kind by the usual rates."""
        estimates = [estimated_s(candidate.work, self._rates) for candidate in self._candidates]
        kinds = dict.fromkeys(map(tuple, self._numbers))
        return sorted(number for numbers in kinds for number in sorted(numbers, key=lambda i: estimates[i])[:_FIRST])

    def _measure(self, numbers: Sequence[int]) -> None:
        assert self._profiles is not None
        profiles = self._profiles([self._candidates[number].module for number in numbers])
        for number, profile in zip(numbers, profiles, strict=True):
            self._seconds[number] = self._own_s(self._candidates[number], profile)
            self._failures[number] = failure_of(profile)
            compiled = compiled_collectives(profile)
            if compiled is not None:
                self._compiled[number] = compiled
        known = [number for number, seconds in self._seconds.items() if math.isfinite(seconds)]
        works = [self._work(number) for number in known]
        self._rates = fitted(works, [self._seconds[number] for number in known], self._calibrated)
        logger.info("CFP: %d of %d candidates are measured", self.measured, len(self._candidates))

    def _work(self, number: int) -> Work:
        """The work of a candidate that was measured."""
        work, compiled = self._candidates[number].work, self._compiled.get(number)
        return work if compiled is None else replace(work, collectives=compiled)

    def _own_s(self, candidate: Candidate, profile: Profile | None) -> float:
        """What a candidate takes inside a larger program; inf where that is not known."""
        if profile is None or profile.status == "failed":
            return math.inf
        arrays = len(candidate.inputs) + len(candidate.outputs)
        # Noise must not make a small program free.
        return max(
            profile.lower_half_mean_s - self._calibrated.overhead_s(arrays),
            _LEAST_OF_MEASURED * profile.lower_half_mean_s,
        )

    def _costs(self) -> list[float]:
        """The seconds of each candidate: measured, or estimated and then optimistic where others are measured."""
        optimism = 1.0 if self._profiles is None else self._margin
        costs = []
        for number, candidate in enumerate(self._candidates):
            known = self._seconds.get(number)
            work = candidate.work if self._profiles is None else candidate.lower_bound
            total_s = estimated_s(work, self._rates) / optimism if known is None else known
            costs.append(self._step_time_s([candidate], total_s))
        return costs

    def known(self, unit: BlockCandidates) -> list[CandidateTime]:
        """What is known of the time of each candidate of a unit; estimates are not optimistic here."""
        found = []
        for number in self._numbers[unit.block]:
            candidate, seconds = self._candidates[number], self._seconds.get(number)
            total_s = estimated_s(candidate.work, self._rates) if seconds is None else seconds
            step_s = self._step_time_s([candidate], total_s)
            time_s = step_s if math.isfinite(step_s) else None
            failure, compiled = self._failures.get(number, ""), self._compiled.get(number)
            found.append(CandidateTime(time_s, seconds is not None, failure, compiled))
        return found

    def with_whole(self, plan: Solution, work: Work) -> Solution:
        """`plan` with the time that it is predicted to take when the work of the whole program is known: the formula
        for what moves between blocks gives way to what the program does beside the work of its blocks.
        """
        costs, chosen = self._costs(), list(zip(self._units, self._numbers, plan.choices, strict=True))
        own_s = sum(costs[numbers[choice]] for _, numbers, choice in chosen)
        parts_s = sum(estimated_s(unit.candidates[choice].work, self._rates) for unit, _, choice in chosen)
        between_s = self._micro_batches * (estimated_s(work, self._rates) - parts_s)
        return replace(plan, time_s=max(own_s + between_s, _LEAST_OF_MEASURED * own_s))

    def step_time_s(self, choices: Sequence[int], total_s: float) -> float:
        """What a step takes by a plan that takes `total_s` with one micro-batch, as far as that can be estimated."""
        return self._step_time_s(
            [u.candidates[choice] for u, choice in zip(self._units, choices, strict=True)], total_s
        )

    def _step_time_s(self, candidates: Sequence[Candidate], total_s: float) -> float:
        once_s = sum(estimated_s(candidate.per_step, self._rates) for candidate in candidates)
        estimate_s = sum(estimated_s(candidate.work, self._rates) for candidate in candidates)
        return step_time_s(once_s, estimate_s, total_s, self._micro_batches)


def compiled_collectives(profile: Profile | None) -> tuple[Collective, ...] | None:
    """What a program that XLA partitions communicates by its compiled program; None where that was not read."""
    if profile is None or not profile.collectives_compiled:
        return None
    return tuple(
        Collective(each.kind, each.size_bytes, each.group_size)
        for each in profile.collectives
        for _ in range(each.count)
    )


def failure_of(profile: Profile | None) -> str:
    """Why a program could not be run, in a line; "" where it could, or there is no profile."""
    if profile is None or profile.status != "failed":
        return ""
    return f"{profile.failure}: {profile.failure_message.partition(chr(10))[0]}"


def _numbers(units: Sequence[BlockCandidates]) -> list[list[int]]:
    """For each unit the places of its candidates in `distinct(units)`."""
    of_kind: dict[int, list[int]] = {}
    start = 0
    for unit in units:
        if unit.kind == unit.block:
            of_kind[unit.kind] = list(range(start, start + len(unit.candidates)))
            start += len(unit.candidates)
    return [of_kind[unit.kind] for unit in units]
