"""The search for the best plans, which measures only the candidates that it needs (CFP, sections 5 and 6).

Takes the `BlockCandidates` of a program, their boundaries and a source of profiles; gives the cheapest plans.
The time of a candidate is what all measurements say of it (`time_model`); one that is not measured counts as faster
than that, by a margin that shrinks as its relatives are measured. The search is repeated, and the candidates of its
plan and those that nearly were in it are measured, until no plan of unmeasured candidates can be much better. Whole
plans that were timed correct the times, too, and the next search knows of them. Invariant: the same profiles give the
same plans, unless a search meets its time limit.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from alpa_cfp.candidates.accumulation import step_time_s
from alpa_cfp.candidates.block_candidates import BlockCandidates, Candidate, distinct
from alpa_cfp.costs import Rates, Work, estimated_s, fitted
from alpa_cfp.database import Profile
from alpa_cfp.plan.caveats import Caveats
from alpa_cfp.search import MEMORY_BYTES, MemoryBudgetError, NoPlanError, SearchProblem, Solution, search
from alpa_cfp.select.profile_source import ProfileSource
from alpa_cfp.select.profiles import compiled_collectives, failure_of
from alpa_cfp.select.search_caveats import add_search_caveats
from alpa_cfp.select.search_problem import Boundaries, ReshardingEdge, make_problem, resharding_times
from alpa_cfp.select.time_model import Corrections, Neighbours, TimeModel
from alpa_cfp.spmd.partition import Collective

logger = logging.getLogger(__name__)


# Candidates of each kind of block that are measured first.
_FIRST = 2
# The programs that are measured in a round, if as many are worth it.
_ROUND = 12
# A candidate is measured beside those of the best plan if the plan with it takes at most this many times as long.
_NEAR = 1.05
# A plan of measured candidates is taken if no other one could be faster by more than this factor.
_ENOUGH = 1.01
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
        measured: Whether the candidate was measured; otherwise `time_s` is estimated.
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
        margin: How many times faster than estimated a candidate may be of which nothing is known; inf measures all.
        limit_s: The time limit of one search.
        micro_batches: The number of micro-batches of a step.
        memory_bytes: The memory limit of one search.
        caveats: Receives what the plan was chosen without.
        baselines: Gives hand-written plans by name for a search problem. The best of them is taken if a search that is
            not exact finds nothing better.

    Attributes:
        caveats, micro_batches: As given.
        limits: The limits of one search: seconds, and bytes.
        candidates: The distinct candidates.
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
        self.candidates = distinct(block_candidates)
        self._block_candidates, self._boundaries, self._calibrated, self._rates = (
            block_candidates,
            boundaries,
            rates,
            rates,
        )
        self._profiles, self._margin, self._baselines = profiles, margin, baselines
        self._numbers = _candidate_numbers(block_candidates)
        kinds = [block.kind for block in block_candidates if block.kind == block.block for _ in block.candidates]
        self._model = TimeModel(kinds, self.candidates)
        # By the number of the candidate; seconds without overhead.
        self._seconds: dict[int, float] = {}
        self._failures: dict[int, str] = {}
        self._compiled: dict[int, tuple[Collective, ...]] = {}
        self._known: Corrections | None = None
        if profiles is not None:
            self._measure(self._first() if math.isfinite(margin) else range(len(self.candidates)))

    @property
    def measured(self) -> int:
        """The number of candidates whose profiles were requested."""
        return len(self._seconds)

    @property
    def problem(self) -> SearchProblem:
        """The search problem, with the times known so far."""
        return self._problem()

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
                other = self._search(self._problem(only_measured=True, without=number), budget_bytes)
            except (NoPlanError, MemoryBudgetError) as error:
                self.caveats.note(
                    f"alternatives for block {kind} and equal blocks are not among the plans that are compared end "
                    f"to end: {_REASONS[type(error)]}"
                )
            else:
                found.setdefault(other.choices, other)
        return [first, *sorted(list(found.values())[1:], key=lambda plan: plan.time_s)]

    def observe(self, choices: Sequence[int], seconds: float) -> None:
        """Takes the measured time of a whole plan into account.

        Args:
            choices: The plan.
            seconds: What a step with one micro-batch takes, with the overhead of its program.
        """
        numbers = [numbers[choice] for numbers, choice in zip(self._numbers, choices, strict=True)]
        neighbours = []
        for edge in self._boundaries.crossings:
            a, b = choices[edge.first], choices[edge.second]
            between_s = float(self._calibrated.communication_s(edge.amounts[a, b]))
            pair = numbers[edge.first], numbers[edge.second]
            neighbours.append(Neighbours((self._kinds_of(edge), int(a), int(b)), pair, between_s))
        own_s = seconds - self._calibrated.overhead_s(self._boundaries.arrays)
        self._model.add_plan(numbers, neighbours, max(own_s, _LEAST_OF_MEASURED * seconds))
        self._known = None

    def _problem(self, *, only_measured: bool = False, without: int | None = None) -> SearchProblem:
        """The search problem.

        Args:
            only_measured: Whether plans are of measured candidates only; otherwise the others count as faster than they
                are known to be.
            without: The number of a candidate that is in no plan.
        """
        costs = self._costs(only_measured=only_measured)
        if without is not None:
            costs[without] = math.inf
        times = [[costs[i] for i in numbers] for numbers in self._numbers]
        return make_problem(self._block_candidates, self._boundaries, times, self._between_s())

    def _between_s(self) -> list[np.ndarray]:
        """For each two blocks what is between them in a step, for each pair of their candidates."""
        known, found = self._corrections, []
        of_kinds: dict[tuple[int, int], list[tuple[int, int, float]]] = {}
        for (kinds, a, b), more_s in known.pairs_s.items():
            of_kinds.setdefault(kinds, []).append((a, b, more_s))
        # Not with the fitted rates: those depend on what has been measured.
        estimated = resharding_times(self._boundaries, self._calibrated)
        for edge, seconds in zip(self._boundaries.crossings, estimated, strict=True):
            corrected = known.resharding * seconds
            for a, b, more_s in of_kinds.get(self._kinds_of(edge), ()):
                corrected[a, b] += more_s
            found.append(self.micro_batches * corrected)
        return found

    def _kinds_of(self, edge: ReshardingEdge) -> tuple[int, int]:
        return self._block_candidates[edge.first].kind, self._block_candidates[edge.second].kind

    def _cheapest(self, budget_bytes: int | None) -> Solution:
        """The cheapest plan of measured candidates; no other could be predicted to be faster by more than `_ENOUGH`."""
        while True:
            problem = self._problem()
            found = self._search(problem, budget_bytes)
            wanted = self._unmeasured(found.choices)
            if wanted:
                try:
                    measured = self._search(self._problem(only_measured=True), budget_bytes)
                except (NoPlanError, MemoryBudgetError):
                    measured = None
                if measured is None or measured.time_s > _ENOUGH * found.time_s:
                    self._measure(sorted({*wanted, *self._near(problem, found, _ROUND - len(wanted))}))
                    continue
                found = measured
            self.gap_s = found.gap_s
            return found

    def _search(self, problem: SearchProblem, budget_bytes: int | None) -> Solution:
        time_s, memory_bytes = self.limits
        try:
            found = search(problem, budget_bytes, time_limit_s=time_s, memory_limit_bytes=memory_bytes)
        except NoPlanError as error:
            raise self._with_reasons(error) from error
        return self._or_baseline(found, problem, budget_bytes) if found.gap_s > 0 else found

    def _or_baseline(self, found: Solution, problem: SearchProblem, budget_bytes: int | None) -> Solution:
        """The plan that a search found which was not exact, or a faster baseline."""
        for name, plan in ({} if self._baselines is None else self._baselines(problem)).items():
            if plan.time_s < found.time_s and (budget_bytes is None or plan.memory.total <= budget_bytes):
                logger.info("CFP: %s is predicted to be faster than what the search has found", name)
                found = replace(plan, gap_s=max(found.gap_s - (found.time_s - plan.time_s), 0.0))
        return found

    def _unmeasured(self, choices: Sequence[int]) -> set[int]:
        """The candidates of a plan that are not measured."""
        if self._profiles is None:
            return set()
        numbers = {numbers[choice] for numbers, choice in zip(self._numbers, choices, strict=True)}
        return numbers.difference(self._seconds)

    def _near(self, problem: SearchProblem, plan: Solution, count: int) -> list[int]:
        """The unmeasured candidates with which a plan, otherwise the same, is nearly as fast; up to `count`."""
        found: list[tuple[float, int]] = []
        for kind in dict.fromkeys(block.kind for block in self._block_candidates):
            times = np.full(len(self._numbers[kind]), plan.time_s)
            for block, variable, choice in zip(self._block_candidates, problem.variables, plan.choices, strict=True):
                if block.kind == kind:
                    times += variable.time_s - variable.time_s[choice]
            for edge, (first, second) in zip(problem.edges, problem.ends, strict=True):
                a, b = plan.choices[first], plan.choices[second]
                same = [self._block_candidates[end].kind == kind for end in (first, second)]
                if any(same):
                    one_sided = edge.time_s[:, b] if same[0] else edge.time_s[a]
                    times += (np.diagonal(edge.time_s) if all(same) else one_sided) - edge.time_s[a, b]
            found += zip(times.tolist(), self._numbers[kind], strict=True)
        near = sorted(each for each in found if each[0] <= _NEAR * plan.time_s and each[1] not in self._seconds)
        return [number for _, number in near[: max(count, 0)]]

    def add_caveats(self) -> None:
        """Adds caveats: what the cheapest plan was chosen without. Call it after the last search."""
        add_search_caveats(self.caveats, self.candidates, self._seconds, self._failures, self._compiled, self.gap_s)

    def _with_reasons(self, error: NoPlanError) -> NoPlanError:
        """The error with the known reasons."""
        why: dict[str, str] = {}
        for block, variable in zip(self._block_candidates, self._problem().variables, strict=True):
            if variable.name in error.names:
                failures = (self._failures.get(number) for number in self._numbers[block.block])
                reasons = dict.fromkeys(failure for failure in failures if failure)
                why[variable.name] = "; ".join(list(reasons)[:_NAMED]) or "none of its programs has a profile"
        return NoPlanError(error.names, why)

    def _kinds_by_time(self, plan: Solution) -> list[int]:
        """The kinds of blocks, by their share of the time of a plan, largest first."""
        costs = self._costs()
        total: dict[int, float] = {}
        for block, numbers, choice in zip(self._block_candidates, self._numbers, plan.choices, strict=True):
            total[block.kind] = total.get(block.kind, 0.0) + costs[numbers[choice]]
        return sorted(total, key=lambda kind: (-total[kind], kind))

    def _first(self) -> list[int]:
        """The fastest candidates of each kind of block, as estimated."""
        estimates = [estimated_s(candidate.work, self._rates) for candidate in self.candidates]
        kinds = dict.fromkeys(map(tuple, self._numbers))
        return sorted(number for numbers in kinds for number in sorted(numbers, key=lambda i: estimates[i])[:_FIRST])

    def _measure(self, numbers: Sequence[int]) -> None:
        assert self._profiles is not None
        profiles = self._profiles([self.candidates[number].module for number in numbers])
        for number, profile in zip(numbers, profiles, strict=True):
            self._seconds[number] = self._own_s(self.candidates[number], profile)
            self._model.add_candidate(number, self._seconds[number])
            self._failures[number] = failure_of(profile)
            compiled = compiled_collectives(profile)
            if compiled is not None:
                self._compiled[number] = compiled
        known = [number for number, seconds in self._seconds.items() if math.isfinite(seconds)]
        works = [self._work(number) for number in known]
        self._rates = fitted(works, [self._seconds[number] for number in known], self._calibrated)
        self._known = None
        logger.info("CFP: %d of %d candidates are measured", self.measured, len(self.candidates))

    def _work(self, number: int) -> Work:
        """The work of a candidate that was measured."""
        work, compiled = self.candidates[number].work, self._compiled.get(number)
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

    @property
    def _corrections(self) -> Corrections:
        if self._known is None:
            self._known = self._model.corrections(self._rates)
        return self._known

    def _costs(self, *, only_measured: bool = False) -> list[float]:
        """The step time of each candidate in a plan; one that is not measured is optimistic, or inf."""
        known, costs = self._corrections, []
        for number, candidate in enumerate(self.candidates):
            total_s = float(known.alone_s[number])
            if self._profiles is not None and number not in self._seconds:
                # XLA mostly partitions better than is predicted.
                bound_s = estimated_s(candidate.lower_bound, self._rates)
                optimism = self._margin ** float(known.deviation[number])
                total_s = math.inf if only_measured else min(total_s, bound_s) / optimism
            elif math.isinf(self._seconds.get(number, 0.0)):
                total_s = math.inf
            costs.append(self._step_time_s([candidate], total_s * float(known.in_plan[number])))
        return costs

    def candidate_times(self, block: BlockCandidates) -> list[CandidateTime]:
        """The time of each candidate of a block in a plan; estimates are not optimistic here."""
        known, found = self._corrections, []
        for number in self._numbers[block.block]:
            seconds = self._seconds.get(number)
            total_s = float(known.alone_s[number] * known.in_plan[number])
            step_s = math.inf if seconds == math.inf else self._step_time_s([self.candidates[number]], total_s)
            time_s = step_s if math.isfinite(step_s) else None
            failure, compiled = self._failures.get(number, ""), self._compiled.get(number)
            found.append(CandidateTime(time_s, seconds is not None, failure, compiled))
        return found

    def step_time_s(self, choices: Sequence[int], total_s: float) -> float:
        """The estimated time of a step by a plan whose time is `total_s` with one micro-batch."""
        return self._step_time_s(
            [u.candidates[choice] for u, choice in zip(self._block_candidates, choices, strict=True)], total_s
        )

    def _step_time_s(self, candidates: Sequence[Candidate], total_s: float) -> float:
        once_s = sum(estimated_s(candidate.per_step, self._rates) for candidate in candidates)
        estimate_s = sum(estimated_s(candidate.work, self._rates) for candidate in candidates)
        return step_time_s(once_s, estimate_s, total_s, self.micro_batches)


def _candidate_numbers(block_candidates: Sequence[BlockCandidates]) -> list[list[int]]:
    """For each block the indices of its candidates in `distinct(block_candidates)`."""
    of_kind: dict[int, list[int]] = {}
    start = 0
    for block in block_candidates:
        if block.kind == block.block:
            of_kind[block.kind] = list(range(start, start + len(block.candidates)))
            start += len(block.candidates)
    return [of_kind[block.kind] for block in block_candidates]
