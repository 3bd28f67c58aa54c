"""The two phases in which a group of programs is measured: all are compiled, then what can be is run interleaved.

Takes the modules and what does a task, on one process or on all hosts of a mesh; gives a profile for each program that
was finished. Where the process ended while several programs were compiled at once, nobody knows at which: all of them
are compiled alone from then on, so that each call finishes a program, or knows of another one, or raises.
"""

import contextlib
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from alpa_cfp.profiling.process.events import Finished
from alpa_cfp.profiling.process.protocol import CompileTask, Suspected, Task, TaskDone

if TYPE_CHECKING:
    from alpa_cfp.spmd.module.hlo_module import HloModule

Done = Finished | Suspected | TaskDone


def measure_in_phases(
    modules: Sequence["HloModule"],
    samples: int,
    drawn: random.Random,
    suspects: set[bytes],
    do: Callable[[CompileTask | Task], Generator[Done]],
) -> Generator[Finished]:
    """Measure a group; what is not finished at the end can be given again.

    Args:
        modules: Modules with their partitioned programs.
        samples: How often each is timed.
        drawn: Decides the order.
        suspects: The programs that are compiled alone; the next ones are added.
        do: Does a task; `TaskDone` comes last, unless the process was lost.
    """
    serialized = tuple(module.as_serialized_hlo_module_proto() for module in modules)
    alone = tuple(index for index, name in enumerate(serialized) if name in suspects)
    left, compiled = dict(enumerate(serialized)), False
    with contextlib.closing(do(CompileTask(serialized, alone))) as events:
        for event in events:
            if isinstance(event, Finished):
                left.pop(event.index)
                yield event
            elif isinstance(event, Suspected):
                suspects.update(serialized[index] for index in event.indexes)
            else:
                compiled = True
    if compiled and left:
        numbers = tuple(left)
        with contextlib.closing(do(Task(tuple(left.values()), samples, drawn))) as events:
            for event in events:
                if isinstance(event, Finished):
                    yield replace(event, index=numbers[event.index])
