"""The search for the best plans, which measures only the candidates that it needs (CFP, sections 5 and 6).

Takes the `BlockCandidates` of a program, their boundaries and a source of profiles; gives the cheapest plans.
A candidate that is not measured counts as `margin` times faster than estimated, with rates fitted to the candidates
measured so far. The search is repeated, and the candidates of its plan are measured, until all of them are. So the
plans are those that measuring everything would give, as long as no candidate is faster than its estimate by more than
the margin. Invariant: the same profiles give the same plans, unless a search meets its time limit.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from alpa_cfp.candidates.accumulation import step_time_s
from alpa_cfp.candidates.block_candidates import BlockCandidates, Candidate, distinct
from alpa_cfp.costs import Rates, Work, estimated_s, fitted
from alpa_cfp.database import Profile
from alpa_cfp.plan.caveats import Caveats
from alpa_cfp.quantities import plural
from alpa_cfp.search import MEMORY_BYTES, MemoryBudgetError, NoPlanError, SearchProblem, Solution, search
from alpa_cfp.select.profile_source import ProfileSource
from alpa_cfp.select.search_problem import Boundaries, make_problem
from alpa_cfp.spmd.partition import Collective

logger = logging.getLogger(__name__)


# Candidates of each kind of block that are measured first, to fit rates to.
_FIRST = 2
# The least share of a measured time that remains when the overhead of starting a program is taken off.
_LEAST_OF_MEASURED = 0.1
# Reasons that a message names at most.
_NAMED = 3
# Reasons why there is no plan without a candidate.
_REASONS = {
    NoPlanError: "nothing else of it can be run",
    MemoryBudgetError: "nothing else fits into the memory budget",
}


@dataclass(frozen=True, slots=True)
class CandidateTime:
    """The time of a candidate in a step, and its source.

    Attributes:
        time_s: Seconds in a step; None for a candidate that failed or has no profile.
        measured: Whether `time_s` is measured; otherwise it is estimated.
        failure: Why the candidate could not be run; "" if it could, or was not tried.
        compiled: The collectives of the compiled program, if XLA partitioned it and they were read; else None.
    """

    time_s: float | None
    measured: bool
    failure: str = ""
    compiled: tuple[Collective, ...] | None = None


class PlanSearch:
    """Searches for the plans of one program, and measures candidates as needed.

    Args:
        block_candidates: The candidates of each block of the program.
        boundaries: The boundaries of the blocks.
        rates: The rates of the mesh.
        profiles: The source of profiles; None: costs are estimates.
        margin: How many times faster than estimated a candidate that is not measured may be; inf measures all.
        limit_s: The time limit of one search.
        micro_batches: The number of micro-batches of a step.
        memory_bytes: The memory limit of one search.
        caveats: Receives what the plan was chosen without.
        baselines: Gives hand-written plans by name for a search problem. The best of them is taken if a search that is
            not exact finds nothing better.

    Attributes:
        caveats, micro_batches: As given.
        limits: The limits of one search: seconds, and bytes.
        gap_s: An upper bound on how much faster another plan could be predicted to be than the cheapest plan that was
            found last; 0 if the search was exact.
    """

    def __init__(
        self,
        block_candidates: Sequence[BlockCandidates],
        boundaries: Boundaries,
        rates: Rates,
        profiles: ProfileSource | None,
        margin: float,
        limit_s: float = math.inf,
        micro_batches: int = 1,
        *,
        memory_bytes: int = MEMORY_BYTES,
        caveats: Caveats | None = None,
        baselines: Callable[[SearchProblem], Mapping[str, Solution]] | None = None,
    ) -> None:
        self.caveats, self.gap_s = Caveats() if caveats is None else caveats, 0.0
        self.limits, self.micro_batches = (limit_s, memory_bytes), micro_batches
        self._block_candidates, self._boundaries = block_candidates, boundaries
        self._calibrated, self._rates = rates, rates
        self._profiles, self._margin, self._baselines = profiles, margin, baselines
        self._candidates = distinct(block_candidates)
        self._numbers = _candidate_numbers(block_candidates)
        # By the number of the candidate; seconds without overhead.
        self._seconds: dict[int, float] = {}
        self._failures: dict[int, str] = {}
        self._compiled: dict[int, tuple[Collective, ...]] = {}
        if profiles is not None:
            self._measure(self._first() if math.isfinite(margin) else range(len(self._candidates)))

    @property
    def measured(self) -> int:
        """The number of candidates whose profiles were requested."""
        return len(self._seconds)

    @property
    def problem(self) -> SearchProblem:
        """The search problem, with the costs known so far."""
        return self._problem()

    def _problem(self, without: int | None = None) -> SearchProblem:
        costs = self._costs()
        if without is not None:
            costs[without] = math.inf
        times = [[costs[i] for i in numbers] for numbers in self._numbers]
        # Not with the fitted rates: those depend on what has been measured.
        return make_problem(self._block_candidates, self._boundaries, times, self._calibrated, self.micro_batches)

    def best(self, count: int, budget_bytes: int | None) -> list[Solution]:
        """The cheapest plan within a budget, and up to `count - 1` alternatives, all of measured candidates only.

        An alternative is the cheapest plan without the candidate that the first plan has for one kind of block; the
        kinds that take most of its time come first. The plans that are next to the best in cost alone differ from it in
        blocks that hardly matter.

        Raises:
            MemoryBudgetError: no plan fits into the budget.
        """
        first = self._cheapest(budget_bytes)
        found = {first.choices: first}
        for kind in self._kinds_by_time(first)[: count - 1]:
            number = self._numbers[kind][first.choices[kind]]
            try:
                other = self._cheapest(budget_bytes, without=number)
            except (NoPlanError, MemoryBudgetError) as error:
                self.caveats.note(
                    f"alternatives for block {kind} and equal blocks are not among the plans that are compared end "
                    f"to end: {_REASONS[type(error)]}"
                )
            else:
                found.setdefault(other.choices, other)
        return [first, *sorted(list(found.values())[1:], key=lambda plan: plan.time_s)]

    def _cheapest(self, budget_bytes: int | None, without: int | None = None) -> Solution:
        """The cheapest plan, without one of the candidates."""
        while True:
            problem = self._problem(without)
            try:
                time_s, memory_bytes = self.limits
                found = search(problem, budget_bytes, time_limit_s=time_s, memory_limit_bytes=memory_bytes)
            except NoPlanError as error:
                raise self._with_reasons(error) from error
            if found.gap_s > 0:
                found = self._or_baseline(found, problem, budget_bytes)
            if not self.measure([found.choices]):
                if without is None:
                    self.gap_s = found.gap_s
                return found

    def _or_baseline(self, found: Solution, problem: SearchProblem, budget_bytes: int | None) -> Solution:
        """The plan that a search found which was not exact, or a faster baseline."""
        for name, plan in ({} if self._baselines is None else self._baselines(problem)).items():
            if plan.time_s < found.time_s and (budget_bytes is None or plan.memory.total <= budget_bytes):
                logger.info("CFP: %s is predicted to be faster than what the search has found", name)
                found = replace(plan, gap_s=max(found.gap_s - (found.time_s - plan.time_s), 0.0))
        return found

    def _with_reasons(self, error: NoPlanError) -> NoPlanError:
        """The error with the known reasons."""
        why: dict[str, str] = {}
        for block, variable in zip(self._block_candidates, self._problem().variables, strict=True):
            if variable.name in error.names:
                failures = (self._failures.get(number) for number in self._numbers[block.block])
                reasons = dict.fromkeys(failure for failure in failures if failure)
                why[variable.name] = "; ".join(list(reasons)[:_NAMED]) or "none of its programs has a profile"
        return NoPlanError(error.names, why)

    def add_caveats(self) -> None:
        """Adds caveats: what the cheapest plan was chosen without. Call it after the last search."""
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
        """Adds a caveat for the candidates that XLA partitions, those with a reason: `but` is the consequence."""
        left = [reason for reason in reasons if reason]
        if left:
            self.caveats.warn(
                f"{len(left)} of {plural(len(self._candidates), 'program')} of blocks are left to XLA's partitioner "
                f"({'; '.join(list(dict.fromkeys(left))[:_NAMED])}): {but}"
            )

    def _kinds_by_time(self, plan: Solution) -> list[int]:
        """The kinds of blocks, by their share of the time of a plan, largest first."""
        costs = self._costs()
        total: dict[int, float] = {}
        for block, numbers, choice in zip(self._block_candidates, self._numbers, plan.choices, strict=True):
            total[block.kind] = total.get(block.kind, 0.0) + costs[numbers[choice]]
        return sorted(total, key=lambda kind: (-total[kind], kind))

    def measure(self, plans: Sequence[Sequence[int]]) -> bool:
        """Measures the candidates of some plans that are not measured yet; returns whether there were any."""
        if self._profiles is None:
            return False
        wanted = {
            numbers[choice] for plan in plans for numbers, choice in zip(self._numbers, plan, strict=True)
        }.difference(self._seconds)
        if wanted:
            self._measure(sorted(wanted))
        return bool(wanted)

    def _first(self) -> list[int]:
        """The fastest candidates of each kind of block, as estimated."""
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
        """The time of a candidate inside a larger program, without overhead; inf without a measurement."""
        if profile is None or profile.status == "failed":
            return math.inf
        arrays = len(candidate.inputs) + len(candidate.outputs)
        # Noise must not make a small program cost nothing.
        return max(
            profile.lower_half_mean_s - self._calibrated.overhead_s(arrays),
            _LEAST_OF_MEASURED * profile.lower_half_mean_s,
        )

    def _costs(self) -> list[float]:
        """The step time of each candidate: measured, or estimated, then by `margin` too low if others are measured."""
        optimism = 1.0 if self._profiles is None else self._margin
        costs = []
        for number, candidate in enumerate(self._candidates):
            measured_s = self._seconds.get(number)
            work = candidate.work if self._profiles is None else candidate.lower_bound
            total_s = estimated_s(work, self._rates) / optimism if measured_s is None else measured_s
            costs.append(self._step_time_s([candidate], total_s))
        return costs

    def candidate_times(self, block: BlockCandidates) -> list[CandidateTime]:
        """The time of each candidate of a block; estimates are not optimistic here."""
        found = []
        for number in self._numbers[block.block]:
            candidate, seconds = self._candidates[number], self._seconds.get(number)
            total_s = estimated_s(candidate.work, self._rates) if seconds is None else seconds
            step_s = self._step_time_s([candidate], total_s)
            time_s = step_s if math.isfinite(step_s) else None
            failure, compiled = self._failures.get(number, ""), self._compiled.get(number)
            found.append(CandidateTime(time_s, seconds is not None, failure, compiled))
        return found

    def with_program_work(self, plan: Solution, work: Work) -> Solution:
        """`plan` with its time predicted from the work of the whole program.

        The costs of edges are replaced by the work of the program beside that of its blocks.
        """
        costs, chosen = self._costs(), list(zip(self._block_candidates, self._numbers, plan.choices, strict=True))
        own_s = sum(costs[numbers[choice]] for _, numbers, choice in chosen)
        parts_s = sum(estimated_s(block.candidates[choice].work, self._rates) for block, _, choice in chosen)
        between_s = self.micro_batches * (estimated_s(work, self._rates) - parts_s)
        return replace(plan, time_s=max(own_s + between_s, _LEAST_OF_MEASURED * own_s))

    def step_time_s(self, choices: Sequence[int], total_s: float) -> float:
        """The estimated time of a step by a plan whose time is `total_s` with one micro-batch."""
        return self._step_time_s(
            [u.candidates[choice] for u, choice in zip(self._block_candidates, choices, strict=True)], total_s
        )

    def _step_time_s(self, candidates: Sequence[Candidate], total_s: float) -> float:
        once_s = sum(estimated_s(candidate.per_step, self._rates) for candidate in candidates)
        estimate_s = sum(estimated_s(candidate.work, self._rates) for candidate in candidates)
        return step_time_s(once_s, estimate_s, total_s, self.micro_batches)


def compiled_collectives(profile: Profile | None) -> tuple[Collective, ...] | None:
    """The collectives of the compiled program, if XLA partitioned it; None if they were not read."""
    if profile is None or not profile.collectives_compiled:
        return None
    return tuple(
        Collective(each.kind, each.size_bytes, each.group_size)
        for each in profile.collectives
        for _ in range(each.count)
    )


def failure_of(profile: Profile | None) -> str:
    """Why a program could not be run, in one line; "" if it could, or if there is no profile."""
    if profile is None or profile.status != "failed":
        return ""
    return f"{profile.failure}: {profile.failure_message.partition(chr(10))[0]}"


def _candidate_numbers(block_candidates: Sequence[BlockCandidates]) -> list[list[int]]:
    """For each block the indices of its candidates in `distinct(block_candidates)`."""
    of_kind: dict[int, list[int]] = {}
    start = 0
    for block in block_candidates:
        if block.kind == block.block:
            of_kind[block.kind] = list(range(start, start + len(block.candidates)))
            start += len(block.candidates)
    return [of_kind[block.kind] for block in block_candidates]
