"""A record of alpa's choice of stages: seconds, programs, the table of costs, the selected stages.

Takes nothing; inside `watched()`, alpa's functions that choose the stages record their arguments and results.
Invariants: their results are unchanged, and afterwards the functions are alpa's own again.
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
    """The record of one choice of stages.

    Attributes:
        seconds: The time of each part of `TIMERS`.
        programs: The number of programs of candidate stages that alpa compiled.
        profiled: The value of `count` when all candidate stages had their costs.
        table: The cost of a stage for a micro-batch, in seconds, by its first layer, its last layer, its submesh and
            its logical mesh; inf if the stage is not possible. None if alpa did not choose.
        chosen: The indices in the table of the stages that alpa chose.
    """

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TIMERS, 0.0))
    programs: int = 0
    profiled: int = 0
    table: np.ndarray | None = None
    chosen: tuple[tuple[int, int, int, int], ...] = ()

    def costs_s(self) -> tuple[float, ...]:
        """The cost in the table of each chosen stage for a micro-batch; empty if alpa did not choose."""
        table = self.table
        return () if table is None else tuple(float(table[place]) for place in self.chosen)

    def latency_s(self, num_micro_batches: int) -> float | None:
        """The step time that alpa's dynamic programme predicts; None if it did not choose."""
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
