"""What one host of a mesh does while programs are measured on it: it has a process that measures, and watches it.

Takes a `Setup`, in which it learns which host of which mesh it is, and tasks; gives the profiles that its own process
made. Invariant: this process computes nothing itself, so it answers whatever a program does to the one that measures.
"""

import contextlib
import os
from collections.abc import Iterator

from alpa_cfp.profiling.group import Finished
from alpa_cfp.profiling.isolated import Worker
from alpa_cfp.profiling.options import MeasureOptions
from alpa_cfp.profiling.protocol import Setup, Task, TaskDone


class Supervisor:
    """One host's part of a mesh that measures.

    Args:
        options: The limits of a program's time.
    """

    def __init__(self, options: MeasureOptions) -> None:
        self._options = options
        self._worker: Worker | None = None

    def start(self, setup: Setup) -> tuple[str, ...]:
        """Become this host of this mesh, once all others do; gives the kinds of the mesh's devices.

        Raises:
            ProfilingError: the process cannot be started, or has not found the others.
        """
        self.close()
        self._worker = Worker(lambda: setup, self._options)
        self._worker.start()
        return self._worker.device_kinds

    def measure(self, task: Task) -> Iterator[Finished | TaskDone]:
        """The profile of each program of the task as soon as this host has it.

        `TaskDone` comes last; without it the process is lost, and with it the mesh. The last profile then says of which
        program and why, if that is known.

        Raises:
            ProfilingError: the process died before it began with a program.
        """
        if self._worker is None:
            raise RuntimeError("a supervisor measures after its start")
        finished = 0
        with contextlib.closing(self._worker.measure_task(task)) as events:
            for event in events:
                finished += 1
                yield event
        if finished == len(task.modules) and self._worker.pid is not None:
            yield TaskDone()

    def is_alive(self) -> bool:
        """Whether this process answers."""
        return True

    def own_pid(self) -> int:
        """The id of this process."""
        return os.getpid()

    def worker_pid(self) -> int | None:
        """The id of the process that measures, while there is one."""
        return None if self._worker is None else self._worker.pid

    def close(self) -> None:
        """End the process that measures, if there is one."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
