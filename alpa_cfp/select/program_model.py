"""What whole plans take beyond the sum of their parts, from the partitioned programs of some of them.

Takes the seconds by which the estimates of a plan's program differ from those of its blocks and what is between them:
gradients are summed together, a value that two blocks need is moved once, what one block writes is fused into the next.
Gives corrections that explain the differences: one share of what all parts take, and one for each candidate or pair of
neighbours, each as small as it can be for what its part is estimated to take (a linear Gaussian model; Rasmussen and
Williams (2006), 2.1). Invariant: the same differences give the same corrections.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from alpa_cfp.select.posterior import PairKey

# A candidate's number, or the key of two neighbours.
PartKey = int | PairKey

# Standard deviations of the corrections of what parts communicate: a share of the latency of a collective, and of what
# a part is estimated to take. The noise, relative to the latency and to all deviations of a plan, and at least.
_LATENCY, _ESTIMATE, _NOISE, _OF_DEVIATIONS, _LEAST_S = 0.7, 0.5, 0.05, 0.01, 1e-9


@dataclass
class ProgramModel:
    """The corrections of one program's candidates.

    Attributes:
        latency_s: The latency of a collective.
        share: The standard deviation of a correction, relative to what its part is estimated to take.
        common: That of the share by which all parts are corrected; 0: they are not.
    """

    latency_s: float
    share: float = _ESTIMATE
    common: float = 0.0
    _counts: list[Counter[PartKey]] = field(default_factory=list, init=False)
    _differences_s: list[float] = field(default_factory=list, init=False)
    _estimates_s: dict[PartKey, float] = field(default_factory=dict, init=False)

    def add(self, parts: Sequence[tuple[PartKey, float]], difference_s: float) -> None:
        """Takes a plan.

        Args:
            parts: Its candidates, by their numbers, and its neighbours, by their keys, each with the seconds that it is
                estimated to take.
            difference_s: The difference of the plan to the sum of its parts.
        """
        self._counts.append(Counter(key for key, _ in parts))
        self._differences_s.append(difference_s)
        for key, seconds in parts:
            self._estimates_s[key] = max(seconds, self._estimates_s.get(key, 0.0))

    def corrections(self) -> tuple[dict[int, float], dict[PairKey, float]]:
        """The seconds to add for candidates, by their numbers, and for pairs, by their keys; 0 for others.

        What all parts are corrected by (`common_share`) is not in them.
        """
        sigma, matrix = self._sigma(), self._matrix()
        means = matrix.T @ self._weights(matrix)
        found = {key: float(mean) * each for (key, each), mean in zip(sigma.items(), means, strict=True)}
        return (
            {key: seconds for key, seconds in found.items() if isinstance(key, int)},
            {key: seconds for key, seconds in found.items() if isinstance(key, tuple)},
        )

    def common_share(self) -> float:
        """The share of what they are estimated to take by which all parts are corrected."""
        if not self._counts or not self.common:
            return 0.0
        return self.common**2 * float(self._totals_s() @ self._weights(self._matrix()))

    def _sigma(self) -> dict[PartKey, float]:
        return {key: _LATENCY * self.latency_s + self.share * own_s for key, own_s in self._estimates_s.items()}

    def _matrix(self) -> np.ndarray:
        """The deviations of the parts of each plan: [plans, parts]."""
        return np.array([[counts[key] * each for key, each in self._sigma().items()] for counts in self._counts])

    def _totals_s(self) -> np.ndarray:
        """What the parts of each plan are estimated to take together: [plans]."""
        return np.array([sum(n * self._estimates_s[key] for key, n in counts.items()) for counts in self._counts])

    def _weights(self, matrix: np.ndarray) -> np.ndarray:
        covariance = matrix @ matrix.T + self.common**2 * np.outer(self._totals_s(), self._totals_s())
        noise = (_NOISE * self.latency_s) ** 2 + _OF_DEVIATIONS**2 * np.diag(covariance) + _LEAST_S**2
        return np.linalg.solve(covariance + np.diag(noise), np.array(self._differences_s))
