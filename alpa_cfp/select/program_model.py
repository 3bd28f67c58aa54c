"""What whole plans communicate beyond the sum of their parts, from the partitioned programs of some of them.

Takes the seconds by which the collectives of a plan's program differ from the estimates for its blocks and what is
between them: gradients are summed together, a value that two blocks need is moved once. Gives corrections for
candidates and for pairs of neighbours that explain the differences, each as small as it can be (a linear Gaussian
model; Rasmussen and Williams (2006), 2.1). Partitioning takes a fraction of what compiling does, so a search looks at
many programs before any plan runs. Invariant: the same differences give the same corrections.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from alpa_cfp.select.posterior import PairKey

# Standard deviations of corrections, and the noise, relative to the latency of a collective.
_CANDIDATE, _PAIR, _NOISE = 0.7, 0.7, 0.05


@dataclass
class ProgramModel:
    """The corrections of one program's candidates.

    Attributes:
        latency_s: The latency of a collective.
    """

    latency_s: float
    _terms: list[dict[Hashable, float]] = field(default_factory=list, init=False)
    _differences_s: list[float] = field(default_factory=list, init=False)

    def add(self, numbers: Sequence[int], pairs: Sequence[PairKey], difference_s: float) -> None:
        """Takes a plan: its candidates, its neighbours, and its difference to the sum of its parts."""
        terms: dict[Hashable, float] = {}
        for keys, sigma in ((numbers, _CANDIDATE), (pairs, _PAIR)):
            for key in keys:
                terms[key] = terms.get(key, 0.0) + sigma * self.latency_s
        self._terms.append(terms)
        self._differences_s.append(difference_s)

    def corrections(self) -> tuple[dict[int, float], dict[PairKey, float]]:
        """The seconds to add for candidates, by their numbers, and for pairs, by their keys; 0 for others."""
        columns = {key: number for number, key in enumerate(dict.fromkeys(key for row in self._terms for key in row))}
        matrix = np.zeros((len(self._terms), len(columns)))
        for i, row in enumerate(self._terms):
            for key, value in row.items():
                matrix[i, columns[key]] = value
        noise = (_NOISE * self.latency_s) ** 2 * np.eye(len(self._terms))
        means = matrix.T @ np.linalg.solve(matrix @ matrix.T + noise, np.array(self._differences_s))
        sigma = {int: _CANDIDATE * self.latency_s, tuple: _PAIR * self.latency_s}
        found = {key: float(means[number]) * sigma[type(key)] for key, number in columns.items()}
        return (
            {key: seconds for key, seconds in found.items() if isinstance(key, int)},
            {key: seconds for key, seconds in found.items() if isinstance(key, tuple)},
        )
