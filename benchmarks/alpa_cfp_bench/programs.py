"""A compiled training step with its state, and what is to be known of it beside its time.

Takes what `alpa.parallelize` or `jax.jit` compiled. Invariant: a program's next step starts from the state that its
last one gave; collectives and memory are those of the compiled program, counted for a whole step.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import jax

from alpa_cfp.profiling import canonical_text
from alpa_cfp.spmd.compile.collectives import collectives_of_hlo
from alpa_cfp.spmd.compile.executable import MeshExecutable
from alpa_cfp.spmd.partition import Collective
from alpa_cfp_bench.cluster import HostsProgram, is_on_hosts, programs_of


class Program:
    """A compiled step with its state.

    Attributes:
        text: Gives the optimised HLO that runs.
        partitioner: "shardy" or "xla".
    """

    def __init__(
        self,
        step: Callable[..., Any],
        state: Any,
        batch: Any,
        text: Callable[[], str],
        partitioner: str,
        wait: Callable[[Any], object] = jax.block_until_ready,
    ):
        self.text = text
        self._wait = wait
        self.partitioner = partitioner
        self._step, self._state, self._batch = step, state, batch
        self._loss: Any = None

    def __call__(self) -> None:
        """One step, dispatch included, until its results are there."""
        self._state, self._loss = self._step(self._state, self._batch)
        self._wait((self._state, self._loss))

    @property
    def state(self) -> Any:
        """The state after the last step."""
        return self._state

    def loss(self) -> float:
        """The loss of the last step."""
        return float(self._loss)


@dataclass(frozen=True, slots=True)
class Traffic:
    """The collectives of one kind in a step.

    Attributes:
        kind: "all-reduce", "all-gather", "reduce-scatter", "all-to-all" or "collective-permute".
        count: How many there are.
        size_bytes: What one device puts into all of them together.
    """

    kind: str
    count: int
    size_bytes: int


def traffic_of_step(executable: Any) -> tuple[Traffic, ...]:
    """The communication of a step of alpa's executable, by kind."""
    found: list[Collective] = []
    for part, times in _parts(executable):
        found += times * part.collectives()
        found += part.grad_sync_collectives()
    return traffic(found)


def traffic_of_text(text: str) -> tuple[Traffic, ...]:
    """The communication of a program, by kind, from its optimised HLO."""
    return traffic(collectives_of_hlo(text))


def traffic(collectives: Iterable[Collective]) -> tuple[Traffic, ...]:
    """The sums by kind, in the order of the kinds' names."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for each in collectives:
        counts[each.kind] += 1
        sizes[each.kind] += each.size_bytes
    return tuple(Traffic(kind, counts[kind], sizes[kind]) for kind in sorted(counts))


def step_text(executable: Any) -> str:
    """The text of the programs of alpa's executable: equal programs have equal texts, byte for byte."""
    return "\n".join(canonical_text(replace(part.module, partitioned=part.program)) for part, _ in _parts(executable))


def memory_bytes(executable: Any) -> int:
    """The memory of one device for alpa's executable: that of the program that needs most."""
    return max(part.total_allocation_size() for part, _ in _parts(executable))


def partitioner_of(executable: Any) -> str:
    """Which partitioner made the program that is run for each micro-batch."""
    return _parts(executable)[0][0].program.partitioner


def _parts(executable: Any) -> list[tuple[MeshExecutable, int]] | list[tuple[HostsProgram, int]]:
    """The programs of alpa's executable, each with how often it runs in a step."""
    if is_on_hosts(executable.physical_mesh):
        return programs_of(executable)
    if hasattr(executable, "accumulate_grad"):
        return [(executable.accumulate_grad, executable.num_micro_batches), (executable.apply_grad, 1)]
    return [(executable.compiled, 1)]
