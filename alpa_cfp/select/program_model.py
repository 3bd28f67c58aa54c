"""What whole plans take beyond the sum of their parts, from the partitioned programs of some of them.

Takes the seconds by which the estimates of a plan's program differ from those of its blocks and what is between them:
gradients are summed together, a value that two blocks need is moved once, or fused into both. Gives corrections for
candidates and for pairs of neighbours that explain the differences, each as small as it can be for what it is
estimated to take (a linear Gaussian model; Rasmussen and Williams (2006), 2.1). Partitioning takes a fraction of
what compiling does, so a search looks at many programs before any plan runs. Invariant: the same differences give the
same corrections.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from alpa_cfp.select.posterior import PairKey

# A candidate's number, or the key of two neighbours.
PartKey = int | PairKey

# Standard deviations of corrections: a share of the latency of a collective, and one of what a part is estimated to
# take; that of collectives, which may be combined with others. The noise, relative to the latency.
_LATENCY, _ESTIMATE, _NOISE = 0.7, 0.5, 0.05


@dataclass
class ProgramModel:
    """The corrections of one program's candidates.

    Attributes:
        latency_s: The latency of a collective.
        share: The standard deviation of a correction, relative to what its part is estimated to take.
    """

    latency_s: float
    share: float = _ESTIMATE
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
        """The seconds to add for candidates, by their numbers, and for pairs, by their keys; 0 for others."""
        sigma = {key: _LATENCY * self.latency_s + self.share * own_s for key, own_s in self._estimates_s.items()}
        matrix = np.array([[counts[key] * each for key, each in sigma.items()] for counts in self._counts])
        noise = (_NOISE * self.latency_s) ** 2 * np.eye(len(matrix))
        means = matrix.T @ np.linalg.solve(matrix @ matrix.T + noise, np.array(self._differences_s))
        found = {key: float(mean) * each for (key, each), mean in zip(sigma.items(), means, strict=True)}
        return (
            {key: seconds for key, seconds in found.items() if isinstance(key, int)},
            {key: seconds for key, seconds in found.items() if isinstance(key, tuple)},
        )
