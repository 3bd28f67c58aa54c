"""The times of candidates and plans, from all measurements at once: a Bayesian linear model.

Takes estimates; gives the mean and the uncertainty of each candidate's time given what was measured: what candidates
compute by themselves, and whole plans. A time is its estimate plus deviations, each normally distributed around zero.
Most of them are common to many candidates: how well contractions of this kind of block run, how fast parts of this
size compute (the same whichever dims of its rows are split), how fast this split computes (the same with ZeRO, whatever
communicates), how fast collectives of this kind are. So a measured candidate says something about its relatives, and
the noise of one measurement does not decide between candidates that compute alike: the cheapest of hundreds of noisy
times is a lucky one. Whole plans have deviations of their own: what a block
takes beside others, and next to a certain neighbour (CFP, section 5, where segments are profiled). The mean is that of
a Gaussian process (Rasmussen and Williams (2006), 2.2). Times can also be drawn from what is known: a draw is a
possible machine on which the same would have been measured, so plans that are best under some draws are those that are
worth running (Thompson (1933)). Invariants: without measurements the mean is the estimate; the same measurements give
the same means.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from alpa_cfp.candidates.block_candidates import Candidate
from alpa_cfp.costs import Work
from alpa_cfp.costs.communication import CollectiveKey
from alpa_cfp.select.alike import split_of

Array = np.ndarray
# The kinds of two neighbouring blocks, and the numbers of their choices.
PairKey = tuple[tuple[int, int], int, int]

# Standard deviations of computing, relative to it: of a kind of block, an amount of work, a split, a candidate.
_KIND, _WORK, _SPLIT, _OWN = 0.25, 0.14, 0.05, 0.03
# Those of plans are the most likely ones by 178 whole plans of 7 models on 8 CPU devices.
# Of computing in a plan, from that of the same block alone: all blocks, those of a kind, a candidate.
_ALL_IN_PLAN, _KIND_IN_PLAN, _OWN_IN_PLAN = 0.2, 0.02, 0.1
# Of collectives in plans: of all, of one kind and group size, of those between blocks beside others; of neighbours,
# relative to the time of both.
_ALL_COLLECTIVES, _COLLECTIVE, _BETWEEN, _PAIR = 0.1, 0.55, 0.55, 0.02
# Noise of measurements, relative and absolute; of a plan also what no part of it explains.
_BLOCK_NOISE, _PLAN_NOISE, _LEAST_NOISE_S = 0.03, 0.035, 2e-5
# The least part that deviations leave of an estimate, or of what was measured if that is less.
_LEAST = 0.1


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Two blocks of a plan that exchange values.

    Attributes:
        key: Equal for equal pairs of kinds with equal choices.
        candidates: The numbers of their candidates.
    """

    key: PairKey
    candidates: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Corrections:
    """The means, given the measurements.

    Attributes:
        computing_s: For each candidate what it computes in a plan.
        deviation: For each candidate the standard deviation of what it computes by itself, relative to what it is
            without measurements.
        communication: The factor of collectives to their estimates, by kind and group size.
        others: The factor of other collectives.
        between: What collectives between blocks take more, relative to their estimates.
        pairs_s: What neighbours take more, by their keys; 0 for others.
    """

    computing_s: Array
    deviation: Array
    communication: Mapping[CollectiveKey, float]
    others: float
    between: float
    pairs_s: Mapping[PairKey, float]

    def communication_s(self, estimates: Mapping[CollectiveKey, float]) -> float:
        """What collectives take, from their estimates."""
        return sum(self.factor(key) * seconds for key, seconds in estimates.items())

    def factor(self, key: CollectiveKey) -> float:
        """The factor of collectives to their estimates."""
        return self.communication.get(key, self.others)

    def between_factor(self, key: CollectiveKey) -> float:
        """The factor of collectives between blocks to their estimates."""
        return max(self.factor(key) + self.between, _LEAST)


@dataclass(frozen=True, slots=True)
class _Row:
    """A measurement: how often each candidate is in it, its seconds and noise; of a plan, its neighbours, and what it
    communicates in all and between blocks."""

    counts: Mapping[int, float]
    seconds: float
    noise_s: float
    neighbours: Sequence[Neighbours] | None = None
    communication_s: Mapping[CollectiveKey, float] = field(default_factory=dict)
    between_s: float = 0.0


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
        self._plans.append(_Row(counts, seconds, noise_s, tuple(neighbours), communication_s, between_s))

    def corrections(
        self, prior: Array, drawn: np.random.Generator | None = None, *, alone: bool = False
    ) -> Corrections:
        """The means, or times drawn from the distribution given the measurements.

        Args:
            prior: The estimates of what candidates compute.
            drawn: Draws the times (Matheron's rule: a draw of everything before the measurements, with the correction
                that the difference between measurements and such a draw calls for); None for the means.
            alone: Whether only what candidates compute by themselves is drawn, which measuring them tells.
        """
        rows = [_Row({n: 1.0}, s, _BLOCK_NOISE * s + _LEAST_NOISE_S) for n, s in self._alone.items()] + self._plans
        if not rows and drawn is None:
            return Corrections(prior, np.ones(len(prior)), {}, 1.0, 0.0, {})

        def draw(size: int, *, is_of_plans: bool = True) -> Array:
            return np.zeros(size) if drawn is None or (alone and is_of_plans) else drawn.standard_normal(size)

        shared, own = self._shared(prior), _OWN * prior
        in_plan, own_in_plan = self._in_plan(prior), _OWN_IN_PLAN * prior
        counts = np.zeros((len(rows), len(prior)))
        for i, row in enumerate(rows):
            counts[i, list(row.counts)] = list(row.counts.values())
        whole = counts * np.array([[float(row.neighbours is not None)] for row in rows]).reshape(-1, 1)
        moved, pairs = _moved(rows), _Pairs.of(rows, prior)
        moving = np.stack(list(moved.values()), axis=1) if moved else np.zeros((len(rows), 0))
        moved_s, noise_s = moving.sum(axis=1), np.array([row.noise_s for row in rows])
        between_s = np.array([row.between_s for row in rows])
        covariance = _outer(counts @ shared) + (counts * own**2) @ counts.T
        covariance += _outer(whole @ in_plan) + (whole * own_in_plan**2) @ whole.T
        covariance += _ALL_COLLECTIVES**2 * np.outer(moved_s, moved_s) + _COLLECTIVE**2 * _outer(moving)
        covariance += _BETWEEN**2 * np.outer(between_s, between_s)
        covariance += _outer(pairs.deviations) + np.diag(noise_s**2)
        inverse = np.linalg.inv(covariance)
        # Deviations before the measurements: zero for the means.
        by_itself = shared @ draw(shared.shape[1], is_of_plans=False) + own * draw(len(own), is_of_plans=False)
        beside = in_plan @ draw(in_plan.shape[1]) + own_in_plan * draw(len(own))
        all_moved = _ALL_COLLECTIVES * float(draw(1)[0])
        moved_of, pairs_of = _COLLECTIVE * draw(len(moved)), draw(len(pairs.by_key))
        between = _BETWEEN * float(draw(1)[0])
        before = counts @ by_itself + whole @ beside + all_moved * moved_s + moving @ moved_of + between * between_s
        before += pairs.deviations @ pairs_of + noise_s * draw(len(rows), is_of_plans=False)
        expected = counts @ prior + moved_s
        weights = inverse @ (np.array([row.seconds for row in rows]) - expected - before)
        computing = prior + by_itself + shared @ ((counts @ shared).T @ weights) + own**2 * (counts.T @ weights)
        computing += beside + in_plan @ ((whole @ in_plan).T @ weights) + own_in_plan**2 * (whole.T @ weights)
        least = prior.copy()
        for number, seconds in self._alone.items():
            least[number] = min(prior[number], seconds)
        others = 1.0 + all_moved + _ALL_COLLECTIVES**2 * float(moved_s @ weights)
        return Corrections(
            np.maximum(computing, _LEAST * least),
            _deviation(shared, own, counts, inverse),
            {
                key: max(others + float(own_part) + _COLLECTIVE**2 * float(each @ weights), _LEAST)
                for (key, each), own_part in zip(moved.items(), moved_of, strict=True)
            },
            max(others, _LEAST),
            max(between + _BETWEEN**2 * float(between_s @ weights), _LEAST - 1),
            {
                key: (float(own_part) + float(each @ weights)) * sigma
                for (key, (each, sigma)), own_part in zip(pairs.by_key.items(), pairs_of, strict=True)
            },
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


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The deviations of neighbours: [measurements, pairs], and for each pair its column and standard deviation."""

    deviations: Array
    by_key: Mapping[PairKey, tuple[Array, float]]

    @classmethod
    def of(cls, rows: Sequence[_Row], prior: Array) -> "_Pairs":
        columns: dict[PairKey, Array] = {}
        sigma: dict[PairKey, float] = {}
        for i, row in enumerate(rows):
            for each in row.neighbours or ():
                sigma[each.key] = _PAIR * float(prior[list(each.candidates)].sum())
                columns.setdefault(each.key, np.zeros(len(rows)))[i] += sigma[each.key]
        deviations = np.stack(list(columns.values()), axis=1) if columns else np.zeros((len(rows), 0))
        return cls(deviations, {key: (column, sigma[key]) for key, column in columns.items()})


def _moved(rows: Sequence[_Row]) -> dict[CollectiveKey, Array]:
    """The estimates of the collectives in each measurement, by kind and group size; in plans only."""
    found: dict[CollectiveKey, Array] = {}
    for i, row in enumerate(rows):
        for key, seconds in row.communication_s.items():
            found.setdefault(key, np.zeros(len(rows)))[i] += seconds
    return found


def _deviation(shared: Array, own: Array, counts: Array, inverse: Array) -> Array:
    """The standard deviation of what candidates compute by themselves, relative to what it is without measurements."""
    before = (shared**2).sum(axis=1) + own**2
    known = shared @ (counts @ shared).T + own[:, None] ** 2 * counts.T
    variance = before - np.einsum("ij,jk,ik->i", known, inverse, known)
    return np.sqrt(np.clip(variance, 0.0, None) / np.maximum(before, 1e-24))


def _outer(rows: Array) -> Array:
    return rows @ rows.T
