"""The times of candidates and plans, from all measurements at once: a Bayesian linear model.

Takes estimates; gives the mean and the uncertainty of each candidate's time given what was measured, be it candidates
by themselves or whole plans. A time is its estimate plus deviations, each of them normally distributed around zero.
Most deviations are common to many candidates: how well contractions of this kind of block run, how fast this split of
it computes (the same with ZeRO, whatever communicates), how fast collectives of this kind are. So a measured candidate
says something about its relatives, and the noise of one measurement does not decide between candidates that compute
alike: the cheapest of hundreds of noisy times is a lucky one. Whole plans have deviations of their own: what a block
takes beside others, and what it takes next to a certain neighbour (CFP, section 5, where segments are profiled).
The mean is that of a Gaussian process (Rasmussen and Williams (2006), 2.2). Invariants: without measurements the mean
is the estimate; the same measurements give the same means.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from alpa_cfp.candidates.block_candidates import Candidate
from alpa_cfp.costs import Rates, crossing_bytes, estimated_s

Array = np.ndarray
# The kinds of two neighbouring blocks, and the numbers of their choices.
PairKey = tuple[tuple[int, int], int, int]

# Standard deviations, relative to what they are deviations of.
_KIND, _SPLIT, _COLLECTIVE, _OWN = 0.25, 0.15, 0.3, 0.05
# Of a block in a plan, from the same block alone: all blocks, those of a kind, a candidate.
_ALL_IN_PLAN, _KIND_IN_PLAN, _OWN_IN_PLAN = 0.2, 0.05, 0.05
# Of resharding between blocks, and of a pair of neighbours, relative to the time of both.
_RESHARDING, _PAIR = 0.4, 0.03
# Noise of measurements, relative and absolute.
_BLOCK_NOISE, _PLAN_NOISE, _LEAST_NOISE_S = 0.04, 0.015, 2e-5
# The least part of an estimate that deviations leave.
_LEAST = 0.1


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Two blocks of a plan that exchange values.

    Attributes:
        key: Equal for equal pairs of kinds with equal choices.
        candidates: The numbers of their candidates.
        resharding_s: The estimate of what is between them, in a step.
    """

    key: PairKey
    candidates: tuple[int, int]
    resharding_s: float


@dataclass(frozen=True, slots=True)
class Corrections:
    """The means, given the measurements.

    Attributes:
        alone_s: For each candidate its time by itself.
        deviation: For each candidate the standard deviation of that, relative to what it is without measurements.
        in_plan: For each candidate the factor of its time in a plan to that by itself.
        resharding: The factor of what resharding takes to its estimate.
        pairs_s: What neighbours take more, by their keys; 0 for others.
    """

    alone_s: Array
    deviation: Array
    in_plan: Array
    resharding: float
    pairs_s: Mapping[PairKey, float]


@dataclass(slots=True)
class _Row:
    """A measurement.

    Attributes:
        counts: How often each candidate is in it.
        seconds: What was measured.
        noise_s: Its noise.
        neighbours: Of a plan; None for a candidate by itself.
    """

    counts: Mapping[int, float]
    seconds: float
    noise_s: float
    neighbours: Sequence[Neighbours] | None = None


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
    _plans: list[_Row] = field(default_factory=list, init=False)

    def add_candidate(self, number: int, seconds: float) -> None:
        """Takes the measured time of a candidate by itself, without overhead; inf is ignored."""
        if math.isfinite(seconds):
            self._alone[number] = seconds

    def add_plan(self, numbers: Sequence[int], neighbours: Sequence[Neighbours], seconds: float) -> None:
        """Takes the measured time of a whole plan, without overhead.

        Args:
            numbers: The candidate of each block.
            neighbours: The blocks that exchange values.
            seconds: What a step with one micro-batch takes.
        """
        counts: dict[int, float] = {}
        for number in numbers:
            counts[number] = counts.get(number, 0.0) + 1.0
        self._plans.append(_Row(counts, seconds, _PLAN_NOISE * seconds, tuple(neighbours)))

    def corrections(self, rates: Rates) -> Corrections:
        """Returns the means, with estimates by `rates`."""
        prior = np.array([estimated_s(candidate.work, rates) for candidate in self.candidates])
        shared, own = self._shared(prior, rates), _OWN * prior
        rows = [_Row({n: 1.0}, s, _BLOCK_NOISE * s + _LEAST_NOISE_S) for n, s in self._alone.items()] + self._plans
        before = np.sqrt((shared**2).sum(axis=1) + own**2)
        if not rows:
            ones = np.ones(len(prior))
            return Corrections(prior, ones, ones, 1.0, {})
        counts = np.zeros((len(rows), len(prior)))
        for i, row in enumerate(rows):
            counts[i, list(row.counts)] = list(row.counts.values())
        whole = counts * np.array([[float(row.neighbours is not None)] for row in rows])
        in_plan, own_in_plan = self._in_plan(prior), _OWN_IN_PLAN * prior
        pairs, resharding_s = _pairs(rows, prior)
        scale = _RESHARDING * resharding_s
        covariance = _outer(counts @ shared) + (counts * own**2) @ counts.T
        covariance += _outer(whole @ in_plan) + (whole * own_in_plan**2) @ whole.T
        covariance += np.outer(scale, scale) + _outer(pairs.deviations)
        covariance += np.diag([row.noise_s**2 for row in rows])
        expected = counts @ prior + resharding_s
        inverse = np.linalg.inv(covariance)
        weights = inverse @ (np.array([row.seconds for row in rows]) - expected)
        alone = prior + shared @ ((counts @ shared).T @ weights) + own**2 * (counts.T @ weights)
        beside = in_plan @ ((whole @ in_plan).T @ weights) + own_in_plan**2 * (whole.T @ weights)
        alone = np.maximum(alone, _LEAST * prior)
        known = shared @ (counts @ shared).T + own[:, None] ** 2 * counts.T
        variance = before**2 - np.einsum("ij,jk,ik->i", known, inverse, known)
        least = np.maximum(before, 1e-12)
        return Corrections(
            alone,
            np.sqrt(np.clip(variance, 0.0, None)) / least,
            np.maximum(alone + beside, _LEAST * prior) / np.maximum(alone, 1e-12),
            max(1.0 + _RESHARDING * float(scale @ weights), _LEAST),
            {key: float(each @ weights) * sigma for key, (each, sigma) in pairs.by_key.items()},
        )

    def _shared(self, prior: Array, rates: Rates) -> Array:
        """The deviations that candidates have in common: [candidates, deviations]."""
        columns: dict[Hashable, int] = {}
        entries: list[tuple[int, int, float]] = []
        for number, (kind, candidate) in enumerate(zip(self.kinds, self.candidates, strict=True)):
            moving: dict[tuple[str, int], float] = {}
            for each in candidate.work.collectives:
                crossing = crossing_bytes(each.kind, each.size_bytes, each.group_size)
                seconds = rates.latency_s + crossing / rates.link_bytes_per_s
                moving[each.kind, each.group_size] = moving.get((each.kind, each.group_size), 0.0) + seconds
            computing = max(prior[number] - sum(moving.values()), 0.0)
            terms = {("kind", kind): _KIND * computing, ("split", kind, _split(candidate)): _SPLIT * computing}
            terms |= {("collective", *key): _COLLECTIVE * seconds for key, seconds in moving.items()}
            for key, value in terms.items():
                entries.append((number, columns.setdefault(key, len(columns)), value))
        found = np.zeros((len(self.candidates), len(columns)))
        for number, column, value in entries:
            found[number, column] = value
        return found

    def _in_plan(self, prior: Array) -> Array:
        """The deviations of blocks in plans that they have in common: [candidates, deviations]."""
        kinds = sorted(set(self.kinds))
        of_kind = np.array([[_KIND_IN_PLAN * (kind == own) for kind in kinds] for own in self.kinds])
        return prior[:, None] * np.hstack([np.full((len(prior), 1), _ALL_IN_PLAN), of_kind])


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The deviations of neighbours.

    Attributes:
        deviations: [measurements, pairs].
        by_key: For each pair its column, and its standard deviation.
    """

    deviations: Array
    by_key: Mapping[PairKey, tuple[Array, float]]


def _pairs(rows: Sequence[_Row], prior: Array) -> tuple[_Pairs, Array]:
    """The deviations of neighbours, and what resharding takes in each measurement by its estimate."""
    columns: dict[PairKey, Array] = {}
    sigma: dict[PairKey, float] = {}
    resharding_s = np.zeros(len(rows))
    for i, row in enumerate(rows):
        for each in row.neighbours or ():
            resharding_s[i] += each.resharding_s
            sigma[each.key] = _PAIR * float(prior[list(each.candidates)].sum())
            columns.setdefault(each.key, np.zeros(len(rows)))[i] += sigma[each.key]
    deviations = np.stack(list(columns.values()), axis=1) if columns else np.zeros((len(rows), 0))
    return _Pairs(deviations, {key: (column, sigma[key]) for key, column in columns.items()}), resharding_s


def _split(candidate: Candidate) -> tuple[tuple[int, int], ...]:
    """For each factor that a candidate splits the number of parts: equal for candidates that compute alike."""
    strategy = candidate.strategy
    factors = sorted({factor for factor in strategy.factors if factor is not None})
    shape = (*candidate.inputs, *candidate.outputs)[0].mesh.shape
    return tuple((each, math.prod(shape[axis] for axis in strategy.axes_of(each))) for each in factors)


def _outer(rows: Array) -> Array:
    return rows @ rows.T
