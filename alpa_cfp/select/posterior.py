"""What is known of times once something was measured: means, uncertainty, and draws (Rasmussen and Williams (2006)).

Takes estimates, what deviations they have in common, and measurements; gives the times given these: that of a Gaussian
process (2.2). Everything that does not depend on a draw is computed once, so draws are cheap. Invariants: without
measurements the mean is the estimate; the same measurements give the same means.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from alpa_cfp.costs.communication import CollectiveKey

Array = np.ndarray
# The kinds of two neighbouring blocks, and the numbers of their choices.
PairKey = tuple[tuple[int, int], int, int]

# Standard deviations of collectives in plans, the most likely ones by the plans that `time_model` names: of all, of one
# kind and group size, of those between blocks beside others; of neighbours, relative to the time of both.
_ALL_COLLECTIVES, _COLLECTIVE, _BETWEEN, _PAIR = 0.1, 0.55, 0.55, 0.02
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
class Measurement:
    """A measurement: how often each candidate is in it, its seconds and noise; of a plan, its neighbours, and what it
    communicates in all and between blocks."""

    counts: Mapping[int, float]
    seconds: float
    noise_s: float
    neighbours: Sequence[Neighbours] | None = None
    communication_s: Mapping[CollectiveKey, float] = field(default_factory=dict)
    between_s: float = 0.0


@dataclass(frozen=True)
class Posterior:
    """The distribution of times given measurements.

    Attributes:
        prior: The estimates of what candidates compute: [candidates].
        shared, own: The deviations of what candidates compute by themselves: those that they have in common,
            [candidates, deviations], and those of each: [candidates].
        in_plan, own_in_plan: Those that come on top in whole plans.
        measurements: What was measured.
    """

    prior: Array
    shared: Array
    own: Array
    in_plan: Array
    own_in_plan: Array
    measurements: Sequence[Measurement]

    @cached_property
    def mean(self) -> Corrections:
        """The means."""
        return self._given(_Draw(self, None, is_alone=False))

    def drawn(self, random: np.random.Generator, *, alone: bool = False) -> Corrections:
        """Times that are possible.

        Matheron's rule: a draw of everything before the measurements, with the correction that the difference between
        measurements and such a draw calls for.

        Args:
            random: Draws them.
            alone: Whether only what candidates compute by themselves is drawn, which measuring them tells.
        """
        return self._given(_Draw(self, random, is_alone=alone))

    def _given(self, before: "_Draw") -> Corrections:
        """The times, from deviations before the measurements, which are zero for the means."""
        counts, whole, moving = self._counts, self._whole, self._moving
        moved_s, between_s = self._moved_s, self._between_s
        difference = np.array([each.seconds for each in self.measurements]) - counts @ self.prior - moved_s
        difference -= counts @ before.by_itself + whole @ before.beside + before.all_moved * moved_s
        difference -= moving @ before.moved + before.between * between_s
        difference -= self._pairs.deviations @ before.pairs + before.noise_s
        weights = self._inverse @ difference
        computing = self.prior + before.by_itself + before.beside
        computing += self.shared @ (self._shared_counts.T @ weights) + self.own**2 * (counts.T @ weights)
        computing += self.in_plan @ ((whole @ self.in_plan).T @ weights) + self.own_in_plan**2 * (whole.T @ weights)
        others = 1.0 + before.all_moved + _ALL_COLLECTIVES**2 * float(moved_s @ weights)
        return Corrections(
            np.maximum(computing, _LEAST * self._least),
            self._deviation,
            {
                key: max(others + float(own_part) + _COLLECTIVE**2 * float(each @ weights), _LEAST)
                for (key, each), own_part in zip(self._moved.items(), before.moved, strict=True)
            },
            max(others, _LEAST),
            max(before.between + _BETWEEN**2 * float(between_s @ weights), _LEAST - 1),
            {
                key: (float(own_part) + float(each @ weights)) * sigma
                for (key, (each, sigma)), own_part in zip(self._pairs.by_key.items(), before.pairs, strict=True)
            },
        )

    @cached_property
    def _counts(self) -> Array:
        """How often each candidate is in each measurement."""
        counts = np.zeros((len(self.measurements), len(self.prior)))
        for i, each in enumerate(self.measurements):
            counts[i, list(each.counts)] = list(each.counts.values())
        return counts

    @cached_property
    def _shared_counts(self) -> Array:
        return self._counts @ self.shared

    @cached_property
    def _whole(self) -> Array:
        """How often each candidate is in each whole plan."""
        is_whole = np.array([float(each.neighbours is not None) for each in self.measurements])
        return self._counts * is_whole[:, None]

    @cached_property
    def _moved(self) -> dict[CollectiveKey, Array]:
        """The estimates of the collectives in each measurement, by kind and group size; in plans only."""
        found: dict[CollectiveKey, Array] = {}
        for i, each in enumerate(self.measurements):
            for key, seconds in each.communication_s.items():
                found.setdefault(key, np.zeros(len(self.measurements)))[i] += seconds
        return found

    @cached_property
    def _moving(self) -> Array:
        """`_moved`, [measurements, kinds and group sizes]."""
        return np.stack(list(self._moved.values()), axis=1) if self._moved else np.zeros((len(self.measurements), 0))

    @cached_property
    def _moved_s(self) -> Array:
        return self._moving.sum(axis=1)

    @cached_property
    def _between_s(self) -> Array:
        return np.array([each.between_s for each in self.measurements])

    @cached_property
    def _pairs(self) -> "_Pairs":
        return _Pairs.of(self.measurements, self.prior)

    @cached_property
    def _noise_s(self) -> Array:
        return np.array([each.noise_s for each in self.measurements])

    @cached_property
    def _inverse(self) -> Array:
        """The inverse of the covariance of the measurements."""
        covariance = _outer(self._shared_counts) + (self._counts * self.own**2) @ self._counts.T
        covariance += _outer(self._whole @ self.in_plan) + (self._whole * self.own_in_plan**2) @ self._whole.T
        covariance += _ALL_COLLECTIVES**2 * np.outer(self._moved_s, self._moved_s) + _COLLECTIVE**2 * _outer(
            self._moving
        )
        covariance += _BETWEEN**2 * np.outer(self._between_s, self._between_s)
        covariance += _outer(self._pairs.deviations) + np.diag(self._noise_s**2)
        return np.linalg.inv(covariance)

    @cached_property
    def _deviation(self) -> Array:
        """The standard deviation of what candidates compute by themselves, relative to that without measurements."""
        before = (self.shared**2).sum(axis=1) + self.own**2
        known = self.shared @ self._shared_counts.T + self.own[:, None] ** 2 * self._counts.T
        variance = before - np.einsum("ij,jk,ik->i", known, self._inverse, known)
        return np.sqrt(np.clip(variance, 0.0, None) / np.maximum(before, 1e-24))

    @cached_property
    def _least(self) -> Array:
        """The estimate of each candidate, or what it took by itself if that is less."""
        least = self.prior.copy()
        for each in self.measurements:
            if each.neighbours is None:
                (number,) = each.counts
                least[number] = min(least[number], each.seconds)
        return least


class _Draw:
    """Deviations before the measurements: drawn, or zero."""

    def __init__(self, of: Posterior, random: np.random.Generator | None, *, is_alone: bool) -> None:
        def draw(size: int, *, is_of_plans: bool = True) -> Array:
            return np.zeros(size) if random is None or (is_alone and is_of_plans) else random.standard_normal(size)

        self.by_itself = of.shared @ draw(of.shared.shape[1], is_of_plans=False)
        self.by_itself += of.own * draw(len(of.own), is_of_plans=False)
        self.beside = of.in_plan @ draw(of.in_plan.shape[1]) + of.own_in_plan * draw(len(of.own_in_plan))
        self.all_moved, self.between = _ALL_COLLECTIVES * float(draw(1)[0]), _BETWEEN * float(draw(1)[0])
        self.moved, self.pairs = _COLLECTIVE * draw(len(of._moved)), draw(len(of._pairs.by_key))
        self.noise_s = of._noise_s * draw(len(of.measurements), is_of_plans=False)


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The deviations of neighbours: [measurements, pairs], and for each pair its column and standard deviation."""

    deviations: Array
    by_key: Mapping[PairKey, tuple[Array, float]]

    @classmethod
    def of(cls, rows: Sequence[Measurement], prior: Array) -> "_Pairs":
        columns: dict[PairKey, Array] = {}
        sigma: dict[PairKey, float] = {}
        for i, row in enumerate(rows):
            for each in row.neighbours or ():
                sigma[each.key] = _PAIR * float(prior[list(each.candidates)].sum())
                columns.setdefault(each.key, np.zeros(len(rows)))[i] += sigma[each.key]
        deviations = np.stack(list(columns.values()), axis=1) if columns else np.zeros((len(rows), 0))
        return cls(deviations, {key: (column, sigma[key]) for key, column in columns.items()})


def _outer(rows: Array) -> Array:
    return rows @ rows.T
