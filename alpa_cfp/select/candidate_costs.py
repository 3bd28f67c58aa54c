"""The costs of candidates in plans, from profiles of what they compute and estimates of what they communicate.

Takes the candidates of a program's blocks, their boundaries and a source of profiles; gives the time of each candidate
in a plan, and of what is between blocks. Candidates that compute alike are measured once, without communication
(`spmd.partition.stand_ins`); what they communicate costs what such collectives take on this mesh. All measurements
together give the times (`time_model`): a candidate that is not measured counts as faster than that, by a margin that
shrinks as its relatives are measured. Invariant: the same profiles give the same costs.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from alpa_cfp.candidates.accumulation import step_time_s
from alpa_cfp.candidates.block_candidates import BlockCandidates, distinct
from alpa_cfp.candidates.candidate import Candidate
from alpa_cfp.costs import CommunicationCosts, Rates, Work, estimated_s, fitted
from alpa_cfp.costs.communication import CollectiveKey
from alpa_cfp.database import Profile
from alpa_cfp.profiling import TimeBudget
from alpa_cfp.search import ClassTable
from alpa_cfp.select.alike import (
    candidate_numbers,
    first_alike,
    first_numbers,
    first_of_order,
    measured_program,
    measured_work,
)
from alpa_cfp.select.crossing_costs import CrossingCosts
from alpa_cfp.select.posterior import Corrections, Neighbours, PairKey, Posterior
from alpa_cfp.select.profile_source import ProfileSource
from alpa_cfp.select.profiles import compiled_collectives, failure_of
from alpa_cfp.select.program_model import PartKey
from alpa_cfp.select.search_problem import Boundaries
from alpa_cfp.select.time_model import TimeModel
from alpa_cfp.spmd.partition import Collective

logger = logging.getLogger(__name__)

Choices = tuple[int, ...]

# The least share of a measured time that remains when the overhead of starting a program is taken off.
_LEAST_OF_MEASURED = 0.1
# The greatest share of what a candidate computes that its program may save.
MOST_SAVED = 0.5


class CandidateCosts:
    """The costs of one program's candidates; better with each measurement.

    Args:
        block_candidates: The candidates of each block of the program.
        boundaries: The boundaries of the blocks.
        rates: The rates of the mesh.
        profiles: The source of profiles; None: costs are estimates.
        margin: How many times faster than estimated a candidate may be of which nothing is known; inf measures all.
        micro_batches: The number of micro-batches of a step.
        communication: What collectives take in a plan, where those that plans combine count by their bytes; None: as
            the rates say, each by itself.
        budget: The time after which no candidate is measured; None without limit.

    Attributes:
        block_candidates, boundaries, micro_batches, communication, budget: As given.
        candidates: The distinct candidates.
        numbers: For each block the numbers of its candidates.
        seconds: For each candidate that was measured its time without overhead; inf if that failed. It stands for all
            that compute alike.
        failures: Why candidates failed, by their numbers; "" if they did not.
        compiled: The collectives of those that XLA partitioned, as read from their compiled programs.
        between: The costs of what is between the blocks.
        plans_s: What plans took that were measured whole, without overhead.
        own_s, pairs_s: Corrections of what candidates and pairs of neighbours communicate (`ProgramModel`).
        fused_share, fused_s: Those of what candidates compute: one share of it, and seconds of each.
    """

    def __init__(
        self,
        block_candidates: Sequence[BlockCandidates],
        boundaries: Boundaries,
        rates: Rates,
        profiles: ProfileSource | None = None,
        margin: float = 1.0,
        *,
        micro_batches: int = 1,
        communication: CommunicationCosts | None = None,
        budget: TimeBudget | None = None,
    ) -> None:
        self.block_candidates, self.boundaries, self.budget = block_candidates, boundaries, budget or TimeBudget()
        self.communication = communication or CommunicationCosts(rates)
        self.candidates, self.numbers = distinct(block_candidates), candidate_numbers(block_candidates)
        self.seconds, self.failures = dict[int, float](), dict[int, str]()
        self.compiled = dict[int, tuple[Collective, ...]]()
        self.plans_s = dict[Choices, float]()
        self.own_s, self.pairs_s = dict[int, float](), dict[PairKey, float]()
        self.fused_share, self.fused_s = 0.0, dict[int, float]()
        self._profiles, self._margin, self.micro_batches = profiles, margin, micro_batches
        all_kinds = [block.kind for block in block_candidates]
        self.between = CrossingCosts(all_kinds, boundaries.crossings, self.communication, micro_batches)
        self._calibrated, self._rates = rates, rates
        kinds = [block.kind for block in block_candidates if block.kind == block.block for _ in block.candidates]
        self._targets = first_alike(kinds, self.candidates)
        # What differs by the order of equal axes only is one to the model: `_place` has its number there for each.
        firsts, self._place = first_of_order(kinds, self.candidates)
        self._firsts = np.array(firsts)
        self._model = TimeModel([kinds[number] for number in firsts], [self.candidates[number] for number in firsts])
        combined = [() if communication is None else each.per_step.collectives for each in self.candidates]
        moved = [
            self.communication.by_key(each.work.collectives, once)
            for each, once in zip(self.candidates, combined, strict=True)
        ]
        # XLA's programs are measured with what they communicate.
        self._moved = [
            {} if each.predicted or each.unread else own for each, own in zip(self.candidates, moved, strict=True)
        ]
        self._known: Posterior | None = None
        self._means: Corrections | None = None
        if profiles is not None:
            first = first_numbers(self.numbers, self._targets, self._computing_s())
            self.measure(first if math.isfinite(margin) else range(len(self.candidates)))

    @property
    def measured(self) -> int:
        """The number of candidates whose profiles were requested."""
        return len(self.seconds)

    @property
    def rates(self) -> Rates:
        """The rates of the mesh that come closest to what was measured."""
        return self._rates

    def of(self, choices: Choices) -> list[int]:
        """The numbers of the candidates of a plan."""
        return [numbers[choice] for numbers, choice in zip(self.numbers, choices, strict=True)]

    def target(self, number: int) -> int:
        """The number of the candidate that is measured for another one."""
        return self._targets[number]

    def add_plan(
        self, choices: Choices, communication_s: Mapping[CollectiveKey, float], beyond_s: float, seconds: float
    ) -> None:
        """Takes the measured time of a whole plan into account.

        Args:
            choices: The plan.
            communication_s: The estimates of its collectives by kind and group size.
            beyond_s: What it computes beyond its parts.
            seconds: What a step with one micro-batch takes, with the overhead of its program.
        """
        numbers = [int(self._place[number]) for number in self.of(choices)]
        neighbours = [
            Neighbours(pair, (numbers[edge.first], numbers[edge.second]))
            for pair, edge in zip(self.between.pairs(choices), self.boundaries.crossings, strict=True)
        ]
        own_s = seconds - self._calibrated.overhead_s(self.boundaries.arrays)
        own_s = max(own_s, _LEAST_OF_MEASURED * seconds)
        parts_s = max(own_s - beyond_s, _LEAST_OF_MEASURED * own_s)
        self._model.add_plan(numbers, neighbours, communication_s, self.between.total_s(choices), parts_s)
        self.plans_s[choices] = self.step_time_s(choices, own_s)
        self._known = self._means = None

    def drawn(self, random: np.random.Generator, *, alone: bool = False) -> Corrections:
        """Times that are possible, given the measurements.

        Args:
            random: Draws them.
            alone: Whether only what measuring candidates by themselves would tell is uncertain.
        """
        return self._of_all(self._posterior.drawn(random, alone=alone))

    def plan_s(
        self,
        choices: Choices,
        communication_s: Mapping[CollectiveKey, float],
        beyond_s: float,
        known: Corrections | None = None,
    ) -> float:
        """The time of a plan whose collectives take `communication_s` by their estimates, without overhead.

        Args:
            choices: The plan.
            communication_s: The estimates of its collectives by kind and group size.
            beyond_s: What it computes beyond its parts.
            known: The times that hold; None for the means.
        """
        known = known or self.means
        total_s = beyond_s + sum(float(known.computing_s[number]) for number in self.of(choices))
        total_s += known.communication_s(communication_s) + known.between * self.between.total_s(choices)
        total_s += sum(known.pairs_s.get(pair, 0.0) for pair in self.between.pairs(choices))
        return max(self.step_time_s(choices, total_s), 0.0)

    def parts(self, choices: Choices) -> list[tuple[PartKey, float]]:
        """The candidates and the neighbours of a plan, each with what it is estimated to communicate."""
        own = [(number, sum(self._moved[number].values())) for number in self.of(choices)]
        moved = [sum(each.values()) for each in self.between.estimates(choices)]
        return [*own, *zip(self.between.pairs(choices), moved, strict=True)]

    def beyond_s(self, number: int, computing_s: float) -> float:
        """What a candidate that computes for `computing_s` as far as parts tell computes beyond that in programs."""
        more_s = self.fused_share * computing_s + self.fused_s.get(number, 0.0)
        return max(more_s, -MOST_SAVED * computing_s) if math.isfinite(computing_s) else 0.0

    def parts_s(self, choices: Choices) -> dict[CollectiveKey, float]:
        """The estimates of what the blocks of a plan communicate, and of what is between them."""
        found: dict[CollectiveKey, float] = {}
        for estimates in (*(self._moved[number] for number in self.of(choices)), *self.between.estimates(choices)):
            for key, seconds in estimates.items():
                found[key] = found.get(key, 0.0) + seconds
        return found

    def between_s(self, known: Corrections | None = None) -> list[ClassTable]:
        """For each two blocks what is between them in a step, for each pair of their candidates."""
        return self.between.tables(known or self.means, self.pairs_s)

    def unmeasured(self, choices: Choices) -> set[int]:
        """The candidates that would have to be measured for a plan."""
        if self._profiles is None:
            return set()
        return {self._targets[number] for number in self.of(choices)}.difference(self.seconds)

    def measure(self, numbers: Iterable[int]) -> None:
        """Measures candidates, or those that compute alike; only some of them if the time is over before."""
        assert self._profiles is not None
        targets = list(dict.fromkeys(self._targets[number] for number in numbers))
        profiles = self._profiles([measured_program(self.candidates[number]) for number in targets])
        is_over = self.budget.is_over
        for number, profile in zip(targets, profiles, strict=True):
            if profile is None and is_over:
                continue
            self.seconds[number] = self._own_s(self.candidates[number], profile)
            self._model.add_candidate(int(self._place[number]), self.seconds[number])
            self.failures[number] = failure_of(profile)
            compiled = compiled_collectives(profile)
            if compiled is not None:
                self.compiled[number] = compiled
        known = [number for number, seconds in self.seconds.items() if math.isfinite(seconds)]
        works = [self._work(number) for number in known]
        self._rates = fitted(works, [self.seconds[number] for number in known], self._calibrated)
        self._known = self._means = None
        logger.info("CFP: %d of %d candidates are measured", self.measured, len(self.candidates))

    def costs(
        self, *, only_measured: bool = False, known: Corrections | None = None, margin: float | None = None
    ) -> list[float]:
        """The step time of each candidate in a plan; one that is not measured is optimistic, or inf.

        Args:
            only_measured: Whether one that is not measured takes forever.
            known: The times that hold; None for the means.
            margin: How optimistic; None as given for all.
        """
        known, costs = known or self.means, []
        margin = self._margin if margin is None else margin
        for number, candidate in enumerate(self.candidates):
            computing_s = float(known.computing_s[number])
            seconds = self.seconds.get(self._targets[number])
            if self._profiles is not None and seconds is None:
                # XLA mostly partitions better than is predicted.
                if candidate.predicted:
                    computing_s = min(computing_s, estimated_s(candidate.lower_bound, self._rates))
                computing_s = math.inf if only_measured else computing_s / margin ** float(known.deviation[number])
            elif seconds == math.inf:
                computing_s = math.inf
            computing_s += self.beyond_s(number, computing_s)
            moved_s = known.communication_s(self._moved[number]) + self.own_s.get(number, 0.0)
            costs.append(self._step_time_s([candidate], computing_s + max(moved_s, 0.0)))
        return costs

    def time_s(self, number: int) -> float:
        """The time of a candidate in a step; an estimate that was not measured is not optimistic here."""
        if self.seconds.get(self._targets[number]) == math.inf:
            return math.inf
        total_s = float(self.means.computing_s[number]) + self.means.communication_s(self._moved[number])
        return self._step_time_s([self.candidates[number]], total_s)

    def step_time_s(self, choices: Sequence[int], total_s: float) -> float:
        """The estimated time of a step by a plan whose time is `total_s` with one micro-batch."""
        return self._step_time_s(
            [u.candidates[choice] for u, choice in zip(self.block_candidates, choices, strict=True)], total_s
        )

    def _step_time_s(self, candidates: Sequence[Candidate], total_s: float) -> float:
        once_s = sum(estimated_s(candidate.per_step, self._rates) for candidate in candidates)
        estimate_s = sum(estimated_s(candidate.work, self._rates) for candidate in candidates)
        return step_time_s(once_s, estimate_s, total_s, self.micro_batches)

    def _computing_s(self) -> np.ndarray:
        """For each candidate the estimate of the program that is measured for it."""
        return np.array([estimated_s(self._work(number), self._rates) for number in range(len(self.candidates))])

    def _work(self, number: int) -> Work:
        return measured_work(self.candidates[number], self.compiled.get(number))

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
    def means(self) -> Corrections:
        """The means of times, given the measurements."""
        if self._means is None:
            self._means = self._of_all(self._posterior.mean)
        return self._means

    def _of_all(self, corrections: Corrections) -> Corrections:
        """The times of all candidates, from those of the model."""
        computing_s, deviation = corrections.computing_s[self._place], corrections.deviation[self._place]
        return replace(corrections, computing_s=computing_s, deviation=deviation)

    @property
    def _posterior(self) -> Posterior:
        if self._known is None:
            self._known, self._means = self._model.posterior(self._computing_s()[self._firsts]), None
        return self._known
