"""What collectives take in the middle of a program, by kind, group size and bytes.

Takes a few measured points; gives seconds. Between two points time grows with the bytes that cross a device's link, as
`crossing_bytes` counts them. Invariant: more bytes never take less time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from alpa_cfp.costs.rates import Rates, crossing_bytes
from alpa_cfp.spmd.partition import Collective

Array = np.ndarray


class CollectiveKey(NamedTuple):
    """What collectives have in common whose time is known together.

    Attributes:
        kind: Their kind.
        group_size: How many devices take part.
        is_aside: Whether they run beside what computes (`Collective.is_aside`), where that makes a difference.
    """

    kind: str
    group_size: int
    is_aside: bool = False


@dataclass(frozen=True, slots=True)
class Curve:
    """The time of collectives of one kind and group size: lines between points, and on beyond the last ones.

    Attributes:
        latency_s: The time of an empty one.
        link_bytes: The bytes that cross a device's link at each point, ascending.
        seconds: The time at each point, ascending, without `latency_s`.
    """

    latency_s: float
    link_bytes: tuple[float, ...]
    seconds: tuple[float, ...]

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> "Curve":
        """The curve through points (link bytes, seconds), which does not fall, and is not below zero."""
        sizes, times = (np.array(each, dtype=np.float64) for each in zip(*sorted(points), strict=True))
        times = np.maximum.accumulate(times)
        slope = (times[1] - times[0]) / (sizes[1] - sizes[0]) if len(sizes) > 1 else 0.0
        latency_s = max(float(times[0] - slope * sizes[0]), 0.0)
        return cls(latency_s, tuple(map(float, sizes)), tuple(float(max(each - latency_s, 0.0)) for each in times))

    def bytes_s(self, link_bytes: np.ndarray) -> np.ndarray:
        """The time of bytes, without latency."""
        sizes, times = (0.0, *self.link_bytes), (0.0, *self.seconds)
        beyond = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
        return np.interp(link_bytes, sizes, times) + beyond * np.maximum(link_bytes - sizes[-1], 0.0)


@dataclass(frozen=True, slots=True)
class CommunicationCosts:
    """What collectives take on one mesh.

    Attributes:
        rates: The rates for kinds and group sizes that were not measured.
        lines: For each kind and group size that was measured its time.
        aside_share: What collectives that can run beside contractions are expected to take of their time, where such
            things run beside each other; None where they do not, as on CPUs: those count like others.
        array_share: What each further large array of a collective costs, as a share of the latency.
        small_array_s, small_byte_s: What each small array, and each of its bytes, costs in a collective of several: it
            is copied into one array with others, and out of it. A reduce-scatter of several, too, which is counted with
            the all-gather of the same arrays.
    """

    rates: Rates = field(default_factory=Rates)
    lines: Mapping[CollectiveKey, Curve] = field(default_factory=dict)
    array_share: float = 0.0
    small_array_s: float = 0.0
    small_byte_s: float = 0.0
    aside_share: float | None = None

    def line(self, key: CollectiveKey) -> Curve:
        """The time of collectives of a kind and a group size; where it was not measured, that of the nearest size."""
        key = CollectiveKey(key.kind, key.group_size)
        if key in self.lines:
            return self.lines[key]
        alike = [other for other in self.lines if other.kind == key.kind]
        if alike:
            nearest = min(alike, key=lambda other: (abs(other.group_size - key.group_size), other.group_size))
            return self.lines[nearest]
        return Curve(self.rates.latency_s, (self.rates.link_bytes_per_s,), (1.0,))

    def crossing_s(self, key: CollectiveKey, count: Array, link_bytes: Array) -> Array:
        """Seconds [...] of `count` [...] collectives by which `link_bytes` [...] cross a device's link together."""
        line, each = self.line(key), np.maximum(count, 1.0)
        return self._exposed(key) * (count * line.latency_s + each * line.bytes_s(link_bytes / each))

    def by_key(
        self, collectives: Sequence[Collective], combined: Sequence[Collective] = ()
    ) -> dict[CollectiveKey, float]:
        """Seconds of collectives by kind and group size.

        Args:
            collectives: The collectives.
            combined: Those of them that a whole plan combines with those of other blocks. Their bytes and arrays count.
                They run beside contractions.
        """
        rest, found = list(combined), dict[CollectiveKey, float]()
        for each in collectives:
            own = each.kind, each.group_size
            same = next((other for other in rest if (other.kind, other.group_size) == own), None)
            if same is not None:
                rest.remove(same)
            key = self.key(each, is_aside=same is not None)
            crossing, line = crossing_bytes(each.kind, each.size_bytes, each.group_size), self.line(key)
            further = each.large_arrays if same is not None else max(each.large_arrays - 1, 0)
            latencies = float(same is None) + self.array_share * further
            seconds = latencies * line.latency_s + float(line.bytes_s(np.array(crossing)))
            if same is not None or each.large_arrays + each.small_arrays > 1:
                seconds += self.small_array_s * each.small_arrays + self.small_byte_s * each.small_bytes
            found[key] = found.get(key, 0.0) + self._exposed(key) * seconds
        return found

    def key(self, collective: Collective, *, is_aside: bool = False) -> CollectiveKey:
        """The key of a collective, which is known to run beside contractions, or says so itself."""
        is_aside = self.aside_share is not None and (is_aside or collective.is_aside)
        return CollectiveKey(collective.kind, collective.group_size, is_aside)

    def _exposed(self, key: CollectiveKey) -> float:
        """The share of their time that collectives take."""
        return self.aside_share if key.is_aside and self.aside_share is not None else 1.0
