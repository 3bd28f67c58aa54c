"""The two phases of measuring a group of programs: all are compiled, then those that can run are timed interleaved.

Takes the modules and a function that does a task, on one process or on all hosts of a mesh; gives a profile for each
program that was finished. Where the process ended while several programs were compiled at once, any of them may be the
cause: all of them are compiled alone from then on, so each call finishes a program, or finds a suspect, or raises.
"""

import contextlib
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from alpa_cfp.profiling.process.protocol import CompileTask, Finished, MeasureTask, Suspected, Task, TaskEvent

if TYPE_CHECKING:
    from alpa_cfp.spmd.module.hlo_module import HloModule


def measure_in_phases(
    modules: Sequence["HloModule"],
    samples: int,
    rng: random.Random,
    suspects: set[bytes],
    do: Callable[[Task], Generator[TaskEvent]],
    references: int = 0,
) -> Generator[Finished]:
    """Measure a group; a program that is not finished at the end can be given again.

    Args:
        modules: Modules with their partitioned programs.
        samples: The number of times that each is timed.
        rng: Draws the order.
        suspects: The programs that are compiled alone; new suspects are added.
        do: Does a task; `TaskDone` comes last, unless the process was lost.
        references: See `MeasureTask`.
    """
    serialized = tuple(module.as_serialized_hlo_module_proto() for module in modules)
    alone = tuple(index for index, program in enumerate(serialized) if program in suspects)
    remaining, compiled = dict(enumerate(serialized)), False
    with contextlib.closing(do(CompileTask(serialized, alone))) as events:
        for event in events:
            if isinstance(event, Finished):
                remaining.pop(event.index)
                yield event
            elif isinstance(event, Suspected):
                suspects.update(serialized[index] for index in event.indexes)
            else:
                compiled = True
    if compiled and remaining:
        indexes = tuple(remaining)
        first = sum(index < references for index in indexes)
        with contextlib.closing(do(MeasureTask(tuple(remaining.values()), samples, rng, first))) as events:
            for event in events:
                if isinstance(event, Finished):
                    yield replace(event, index=indexes[event.index])
