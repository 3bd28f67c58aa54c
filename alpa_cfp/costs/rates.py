"""The speed of a mesh in a few numbers, and the time of a program by them.

Takes the work of a program; gives seconds. The default rates only rank programs; `fitted` gives those of a mesh, from
programs that were measured on it. Invariant: more work never takes less time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import nnls

from alpa_cfp.costs.work import Work

# How many times the bytes of a device's part cross its link, for each kind of collective among n devices.
_CROSSINGS = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: n - 1,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1.0,
}
# A device may be so many times faster than the default rates, which are those of a CPU core: a GPU is, by 1e5.
_LEAST_FACTOR = 1e-7


@dataclass(frozen=True, slots=True)
class Rates:
    """The speed of one device of the mesh.

    Attributes:
        flops_per_s: Floating-point operations.
        bytes_per_s: Writes to memory, and reads of what contractions multiply.
        latency_s: Latency of one collective.
        link_bytes_per_s: Bandwidth of the device's link.
        dispatch_s: Overhead of starting a program and waiting for it.
        array_s: Additional overhead for each of its arguments and results.
    """

    flops_per_s: float = 2e10
    bytes_per_s: float = 5e9
    latency_s: float = 1e-4
    link_bytes_per_s: float = 2e9
    dispatch_s: float = 0.0
    array_s: float = 0.0

    def overhead_s(self, arrays: int) -> float:
        """The overhead of a program with `arrays` arguments and results."""
        return self.dispatch_s + self.array_s * arrays

    def communication_s(self, amounts: np.ndarray) -> np.ndarray:
        """Seconds [...] of communication `amounts` [..., 2]: collectives, and bytes across a device's link."""
        return amounts @ np.array([self.latency_s, 1 / self.link_bytes_per_s])


def crossing_bytes(kind: str, size_bytes: float, group_size: int) -> float:
    """The bytes that cross a device's link in a collective to which each device contributes `size_bytes`."""
    return _CROSSINGS[kind](group_size) * size_bytes


def estimated_s(work: Work, rates: Rates) -> float:
    """Seconds of one run of a program without its overhead: computing, writing and communicating, one after another."""
    flops, memory, count, crossing = _amounts(work)
    communication = count * rates.latency_s + crossing / rates.link_bytes_per_s
    return flops / rates.flops_per_s + memory / rates.bytes_per_s + communication


def fitted(works: Sequence[Work], seconds: Sequence[float], rates: Rates, *, trust_communication: float = 0.1) -> Rates:
    """The rates whose estimates come closest to measured times without overhead, by least squares of relative errors.

    Errors are relative to a time with the overhead of starting a program: no time is known better than by a share of
    that. Rates that the programs do not determine stay as in `rates`, which count as weak observations.

    Args:
        works: The work of the programs.
        seconds: Their measured times, without overhead.
        rates: The rates before.
        trust_communication: The weight of the latency and link of `rates`; that of a program is 1.
    """
    usual = np.array([1 / rates.flops_per_s, 1 / rates.bytes_per_s, rates.latency_s, 1 / rates.link_bytes_per_s])
    amounts = np.array([_amounts(work) for work in works]).reshape(-1, 4) * usual
    times = np.maximum(np.array(seconds, dtype=np.float64), 1e-6)
    weights = 1 / (times + rates.dispatch_s)
    weak = np.diag([0.1, 0.1, trust_communication, trust_communication])
    factors, _ = nnls(np.vstack([amounts * weights[:, None], weak]), np.concatenate([times * weights, np.diag(weak)]))
    flop, byte, latency, link = np.maximum(factors, _LEAST_FACTOR) * usual
    return replace(
        rates,
        flops_per_s=float(1 / flop),
        bytes_per_s=float(1 / byte),
        latency_s=float(latency),
        link_bytes_per_s=float(1 / link),
    )


def _amounts(work: Work) -> tuple[float, float, float, float]:
    crossing = sum(crossing_bytes(each.kind, each.size_bytes, each.group_size) for each in work.collectives)
    return work.flops, work.memory_bytes, len(work.collectives), crossing
