"""What alpa's choice of stages looks at and takes: seconds, programs, the table of costs, what it found the best.

Takes nothing; while `watched()` lasts, the functions of alpa's that the choice goes through note what they were given
and gave. Invariant: what they give is alpa's own, and afterwards they are alpa's own.
"""

import contextlib
import functools
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tqdm
from alpa.pipeline_parallel import stage_construction, stage_profiling
from alpa.timer import timers

from alpa_on_jax.alpa.pipeline_parallel.stage_profiling import PLANNING

# What the seconds of each part are called, and alpa's timers of them.
TIMERS = {
    "plan": PLANNING,
    "compile": "stage-construction-compilation",
    "profile": "stage-construction-profiling",
    "search": "stage-construction-dp",
}


@dataclass
class StageChoice:
    """What was seen of one choice of stages.

    Attributes:
        seconds: What each part of `TIMERS` took.
        programs: How many programs of candidate stages alpa compiled.
        profiled: What `count` was when all candidate stages had their costs.
        table: What a stage costs for a micro-batch, in seconds, by its first layer, its last one, its submesh and its
            logical mesh; inf where it cannot be. None if alpa did not choose.
        chosen: Where in the table the stages are that alpa chose.
    """

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TIMERS, 0.0))
    programs: int = 0
    profiled: int = 0
    table: np.ndarray | None = None
    chosen: tuple[tuple[int, int, int, int], ...] = ()

    def costs_s(self) -> tuple[float, ...]:
        """What each chosen stage costs for a micro-batch, by the table; nothing if alpa did not choose."""
        table = self.table
        return () if table is None else tuple(float(table[place]) for place in self.chosen)

    def latency_s(self, num_micro_batches: int) -> float | None:
        """What alpa's dynamic programme expects a step to take; None if it did not choose."""
        costs = self.costs_s()
        return sum(costs) + (num_micro_batches - 1) * max(costs) if costs else None


def warm_up(hosts: int, devices: int) -> None:
    """Let alpa's dynamic programme be compiled now, which else the first choice of a process pays for.

    Args:
        hosts: Of the mesh that is to be cut.
        devices: Of each host.
    """
    option = stage_construction.AutoStageOption()
    submeshes: Any = stage_construction.get_submesh_choices(hosts, devices, option.submesh_physical_shape_space)
    shape = (1, 1, len(submeshes), 1)
    more: Any = np.zeros(shape, np.int64)
    stage_construction.training_dp(1, hosts * devices, 1, submeshes, 1, np.ones(shape), more)


@contextlib.contextmanager
def watched(count: Callable[[], int] = lambda: 0) -> Iterator[StageChoice]:
    """Note what alpa does to choose stages, for the time of the context.

    What it prints is dropped, and so is the file with its results, which it writes into the current folder.

    Args:
        count: How many programs CFP has measured by now.
    """
    seen = StageChoice()
    # A timer that an error left running begins anew.
    for name in TIMERS.values():
        timers(name).reset()

    def table(cost: Any) -> None:
        seen.table, seen.profiled = np.array(cost[0]), count()

    def chosen(found: Any) -> None:
        # Alpa's ranges end behind the last layer.
        seen.chosen = tuple((int(start), int(end) - 1, int(mesh), int(way)) for (start, end), mesh, way in found[1])

    def compiled(outputs: Any) -> None:
        seen.programs += sum(len(each.acc_grad_module_compile_outputs) for each in outputs if each is not None)

    with contextlib.ExitStack() as stack:
        for module, name, note in (
            (stage_construction, "get_compute_cost", table),
            (stage_construction, "training_dp", chosen),
            (stage_profiling, "compile_all", compiled),
        ):
            stack.enter_context(_noted(module, name, note))
        stack.enter_context(_set(tqdm, "tqdm", _no_bar))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(_in_a_folder_of_its_own())
        try:
            yield seen
        finally:
            seen.seconds = {part: timers(name).elapsed("sum") for part, name in TIMERS.items()}


_no_bar = functools.partial(tqdm.tqdm, disable=True)


def _noted(module: Any, name: str, note: Callable[[Any], None]) -> contextlib.AbstractContextManager[None]:
    original = getattr(module, name)

    @functools.wraps(original)
    def noted(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        note(result)
        return result

    return _set(module, name, noted)


@contextlib.contextmanager
def _set(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


@contextlib.contextmanager
def _in_a_folder_of_its_own() -> Iterator[None]:
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield
    assert os.getcwd() == before
