"""What one host of a mesh does while programs are measured on it: it has a process that measures, and watches it.

Takes a `Setup`, in which it learns which host of which mesh it is, and tasks; gives the profiles that its own process
made. Invariant: this process computes nothing itself, so it answers whatever a program does to the one that measures.
"""

import contextlib
import os
from collections.abc import Iterator

from alpa_cfp.profiling.options import MeasureOptions
from alpa_cfp.profiling.process.phases import Done
from alpa_cfp.profiling.process.protocol import CompileTask, Setup, Task
from alpa_cfp.profiling.process.subprocess_runner import SubprocessRunner


class Supervisor:
    """One host's part of a mesh that measures.

    Args:
        options: The limits of a program's time.
    """

    def __init__(self, options: MeasureOptions) -> None:
        self._options = options
        self._worker: SubprocessRunner | None = None

    def start(self, setup: Setup) -> None:
        """Become this host of this mesh, once all others do.

        Raises:
            ProfilingError: the process cannot be started, or has not found the others, or has other devices.
        """
        self.close()
        self._worker = SubprocessRunner(lambda: setup, self._options)
        self._worker.start()

    def do(self, task: CompileTask | Task) -> Iterator[Done]:
        """What this host's process says of the programs of a task, as soon as it does.

        `TaskDone` comes last; without it the process is lost, and with it the mesh. What was said last then tells of
        which program and why, if that is known.

        Raises:
            ProfilingError: the process died before it began with a program.
        """
        if self._worker is None:
            raise RuntimeError("a supervisor measures after its start")
        with contextlib.closing(self._worker.do(task)) as events:
            yield from events

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
