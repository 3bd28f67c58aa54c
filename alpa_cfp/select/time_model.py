"""The times of candidates and plans, from all measurements at once: a Bayesian linear model.

Takes estimates; gives what is known of each candidate's time given what was measured: what candidates compute by
themselves, and whole plans. A time is its estimate plus deviations, each normally distributed around zero. Most of them
are common to many candidates: how well contractions of this kind of block run, how fast parts of this size compute (the
same whichever dims of its rows are split), how fast this split computes (the same with ZeRO, whatever communicates),
how fast collectives of this kind are. So a measured candidate says something about its relatives, and the noise of one
measurement does not decide between candidates that compute alike: the cheapest of hundreds of noisy times is a lucky
one. Whole plans have deviations of their own: what a block takes beside others, and next to a certain neighbour (CFP,
section 5, where segments are profiled).
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from alpa_cfp.candidates.candidate import Candidate
from alpa_cfp.costs import Work
from alpa_cfp.costs.communication import CollectiveKey
from alpa_cfp.select.alike import split_of
from alpa_cfp.select.posterior import Measurement, Neighbours, Posterior

Array = np.ndarray

# Standard deviations of computing, relative to it: of a kind of block, an amount of work, a split, a candidate.
_KIND, _WORK, _SPLIT, _OWN = 0.25, 0.14, 0.05, 0.03
# Those of plans are the most likely ones by 178 whole plans of 7 models on 8 CPU devices.
# Of computing in a plan, from that of the same block alone: all blocks, those of a kind, a candidate.
_ALL_IN_PLAN, _KIND_IN_PLAN, _OWN_IN_PLAN = 0.2, 0.02, 0.1
# Noise of measurements, relative and absolute; of a plan also what no part of it explains.
_BLOCK_NOISE, _PLAN_NOISE, _LEAST_NOISE_S = 0.03, 0.035, 2e-5


@dataclass
class TimeModel:
    """The times of the candidates of one program.

    Attributes:
        kinds: For each candidate its kind of block.
        candidates: The candidates.
    """

    kinds: Sequence[int]
    candidates: Sequence[Candidate]
    _alone: dict[int, float] = field(default_factory=dict, init=False)
    _plans: list[Measurement] = field(default_factory=list, init=False)

    def add_candidate(self, number: int, seconds: float) -> None:
        """Takes what a candidate computes by itself, measured without overhead; inf is ignored."""
        if math.isfinite(seconds):
            self._alone[number] = seconds

    def add_plan(
        self,
        numbers: Sequence[int],
        neighbours: Sequence[Neighbours],
        communication_s: Mapping[CollectiveKey, float],
        between_s: float,
        seconds: float,
    ) -> None:
        """Takes the measured time of a whole plan.

        Args:
            numbers: The candidate of each block.
            neighbours: The blocks that exchange values.
            communication_s: The estimates of its collectives, by kind and group size.
            between_s: The estimate of those that are between blocks.
            seconds: What a step with one micro-batch takes, without overhead.
        """
        counts: dict[int, float] = {}
        for number in numbers:
            counts[number] = counts.get(number, 0.0) + 1.0
        noise_s = _PLAN_NOISE * seconds
        self._plans.append(Measurement(counts, seconds, noise_s, tuple(neighbours), communication_s, between_s))

    def posterior(self, prior: Array) -> Posterior:
        """What is known of the times, given the measurements.

        Args:
            prior: The estimates of what candidates compute.
        """
        alone = [Measurement({n: 1.0}, s, _BLOCK_NOISE * s + _LEAST_NOISE_S) for n, s in self._alone.items()]
        return Posterior(
            prior, self._shared(prior), _OWN * prior, self._in_plan(prior), _OWN_IN_PLAN * prior, alone + self._plans
        )

    def _shared(self, prior: Array) -> Array:
        """The deviations that candidates have in common: [candidates, deviations]."""
        columns: dict[Hashable, int] = {}
        entries: list[tuple[int, int, float]] = []
        works: dict[Hashable, Work] = {}
        for number, (kind, candidate) in enumerate(zip(self.kinds, self.candidates, strict=True)):
            split = kind, split_of(candidate)
            work = works.setdefault(split, candidate.work)  # sharded state changes it
            alike = kind, work.flops, work.memory_bytes
            for key, sigma in ((kind, _KIND), (alike, _WORK), (split, _SPLIT)):
                entries.append((number, columns.setdefault(key, len(columns)), sigma * prior[number]))
        found = np.zeros((len(self.candidates), len(columns)))
        for number, column, value in entries:
            found[number, column] = value
        return found

    def _in_plan(self, prior: Array) -> Array:
        """The deviations of blocks in plans that they have in common: [candidates, deviations]."""
        kinds = sorted(set(self.kinds))
        of_kind = np.array([[_KIND_IN_PLAN * (kind == own) for kind in kinds] for own in self.kinds])
        return prior[:, None] * np.hstack([np.full((len(prior), 1), _ALL_IN_PLAN), of_kind])
