"""One construction of stages: what it has started, what it was given, and which candidates it has lost.

Alpa asks for candidates shape by shape, and for each shape anew; what lives longer than that is kept here. Invariant:
when a construction is over, by whatever way, no worker of it is left.
"""

import contextlib
import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from alpa_on_jax.ray_mesh.processes.worker_pool import WorkerPool

log = logging.getLogger("alpa_on_jax")

_current: ContextVar["StageRun | None"] = ContextVar("stage construction", default=None)


@dataclass(eq=False, slots=True)
class StageRun:
    """A construction of stages.

    Attributes:
        num_devices: Of the mesh that the stages are for; 0 where it is not known.
        shapes: Of the submeshes that a stage may get.
        imbalance: Alpa's `stage_imbalance_tolerance`.
        cached: The file of results that alpa was given.
        lost: Why there is no result, for each candidate that could not be compiled or timed.
        variables: Those of the candidates. Alpa calls them by their addresses, which must not be used again.
        configs: The layers that alpa makes candidates of, and its `StageConfig` of some, by what says which; they are
            the same for submeshes of all shapes.
        known: What a planner of stages has found out about them.
    """

    num_devices: int = 0
    shapes: Sequence[tuple[int, int]] = ()
    imbalance: float = float("inf")
    cached: str | None = None
    lost: dict[str, str] = field(default_factory=dict)
    variables: list[Any] = field(default_factory=list)
    configs: dict[Hashable, tuple[Any, Any]] = field(default_factory=dict)
    known: dict[str, Any] = field(default_factory=dict)
    _compiling: WorkerPool | None = None

    def compile_workers(self, make: Callable[[], WorkerPool]) -> WorkerPool:
        """Those that there are already, which need not be started again; or none yet, in a pool of `make()`."""
        if self._compiling is None:
            self._compiling = make()
        return self._compiling

    def lose(self, stage: Any, reason: str) -> None:
        """Go on without a candidate stage.

        Args:
            stage: Alpa's tuple of its index, its programs, and its logical mesh with options.
            reason: Why.
        """
        name = name_of(stage)
        self.lost.setdefault(name, reason)
        log.warning("stages are chosen without a candidate, %s: %s", name, reason)

    def end_workers(self) -> None:
        """End those that may be left."""
        if self._compiling is not None:
            self._compiling.end()
            self._compiling = None


def name_of(stage: Any) -> str:
    """What a candidate stage is, in words."""
    index, _, (logical_mesh, _) = stage
    first, last = (index[0], index[1]) if len(index) == 4 else (index[0], index[0])
    rows, columns = logical_mesh.shape
    layers = f"layer {first}" if first == last else f"layers {first} to {last}"
    return f"{layers} on a {rows} x {columns} mesh"


@contextlib.contextmanager
def started(run: StageRun) -> Iterator[None]:
    """All that is compiled and timed within belongs to `run`, and has ended afterwards."""
    token = _current.set(run)
    try:
        yield
    finally:
        _current.reset(token)
        run.end_workers()


@contextlib.contextmanager
def current() -> Iterator[StageRun]:
    """The construction that goes on; or, where one of alpa's functions is called by itself, one for that call."""
    run = _current.get()
    if run is not None:
        yield run
        return
    run = StageRun()
    with started(run):
        yield run
