"""Measure programs on devices of this machine, one group after the other: in this process, or in a worker process.

Takes the client of a mesh and a queue of programs; gives the profile of each program. Invariants: no program is loaded
after `close`; a program that crashes or hangs in a worker costs that program only. In this process a crash ends the
process and nothing bounds the time, but devices whose memory belongs to one process (GPUs, TPUs) can be measured only
there.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence

from alpa_cfp.profiling.options import MeasureOptions
from alpa_cfp.profiling.process.group import Loaded, cores, do_task
from alpa_cfp.profiling.process.phases import measure_in_phases
from alpa_cfp.profiling.process.protocol import CompileTask, Finished, Task, TaskDone, TaskEvent
from alpa_cfp.profiling.process.setups import setup_of
from alpa_cfp.profiling.process.supervisor import COMMAND, Supervisor
from alpa_cfp.profiling.queue import Group, ProfilingQueue
from alpa_cfp.spmd.compile.executable import Client
from alpa_cfp.spmd.module.hlo_module import HloModule


class SequentialBackend(ABC):
    """Measures one group after the other; see `Measurer`."""

    def __init__(self) -> None:
        # Programs that are compiled alone: one of them may have ended a worker.
        self._suspects = set[bytes]()

    @abstractmethod
    def start(self) -> None:
        """See `Measurer`."""

    def prepare(self, modules: Sequence[HloModule]) -> None:
        """See `Measurer`. A program that cannot be compiled fails again when it is measured."""
        task = CompileTask(tuple(module.as_serialized_hlo_module_proto() for module in modules), ())
        with contextlib.closing(self.do(task)) as events:
            for _ in events:
                pass

    @abstractmethod
    def do(self, task: Task) -> Generator[TaskEvent]:
        """Do a task; `TaskDone` comes last, unless the worker was lost."""

    def measure_group(self, group: Group) -> Generator[Finished]:
        """Measure a group; what is not finished at the end, because the worker was lost before, can be given again.

        Raises:
            ProfilingError: the worker cannot be started, or died before it began with a program.
        """
        return measure_in_phases(group.modules, group.samples, group.rng, self._suspects, self.do, group.references)

    @abstractmethod
    def close(self) -> None:
        """Unload all programs, and end the worker."""

    def measure(self, work: ProfilingQueue) -> Generator[tuple[Group, Finished]]:
        """See `Measurer`."""
        while (group := work.take()) is not None:
            # Closed at once if this is interrupted: its process must be gone before the next one starts.
            with contextlib.closing(self.measure_group(group)) as events:
                for finished in events:
                    yield group, finished
            work.end(group)


class InProcessRunner(SequentialBackend):
    """Measures in this process, on the devices of `client`."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client
        self._loaded: dict[bytes, Loaded] = {}

    def start(self) -> None:
        """Does nothing."""

    def do(self, task: Task) -> Generator[TaskEvent]:
        yield from do_task(task, self._client, cores(), self._loaded, lambda *_: None)
        yield TaskDone()

    def close(self) -> None:
        for program in self._loaded.values():
            program.executable.delete()
        self._loaded.clear()


class SubprocessRunner(SequentialBackend):
    """Measures in a worker process that has the devices of `client`.

    The worker starts with the first group and is used for all later ones; it is started anew after it hung or died, and
    when the settings of JAX have changed.

    Args:
        client: The client of a mesh of this process.
        options: The time limits of a program.
        command: Starts the worker; see `Supervisor`.

    Attributes:
        supervisor: The supervisor of the worker.
    """

    def __init__(self, client: Client, options: MeasureOptions, command: Sequence[str] = COMMAND) -> None:
        super().__init__()
        self._client = client
        self.supervisor = Supervisor(options, command)

    def start(self) -> None:
        self.supervisor.start(setup_of(self._client))

    def do(self, task: Task) -> Generator[TaskEvent]:
        self.start()
        return self.supervisor.do(task)

    def close(self) -> None:
        self.supervisor.close()
