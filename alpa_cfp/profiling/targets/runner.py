"""Profiles programs for a target in a worker process, one group after the other.

Takes a target and a queue of programs; gives the profile of each. Invariant: a program at which the compiler crashes,
hangs or runs out of memory costs that program only.
"""

import os
import sys
from collections.abc import Generator
from dataclasses import dataclass, field

from alpa_cfp.database.values import text_digest
from alpa_cfp.profiling.keys import DeviceDescription, code_flags, host_layout
from alpa_cfp.profiling.options import MeasureOptions
from alpa_cfp.profiling.process.protocol import Setup, Task, TaskEvent
from alpa_cfp.profiling.process.setups import jax_config
from alpa_cfp.profiling.process.supervisor import Supervisor
from alpa_cfp.profiling.runners import SequentialBackend
from alpa_cfp.targets.modelled_program import MODEL
from alpa_cfp.targets.target import Target
from alpa_cfp.targets.topology import compiler_version

_COMMAND = (sys.executable, "-P", "-m", "alpa_cfp.profiling.targets.worker")


@dataclass(frozen=True, slots=True)
class TargetSetup(Setup):
    """The setup of a worker that compiles for a target.

    Attributes:
        target: The target.
    """

    target: Target | None = field(default=None)


def device_kind_of(target: Target) -> str:
    """The kind of devices in the keys of a target's profiles: with all that the model knows of it."""
    return f"{target.name}, modelled ({text_digest(f'{MODEL} {target!r}')[:12]})"


def description_of(target: Target) -> DeviceDescription:
    """The devices of a target, and its compiler, as the keys of profiles describe them.

    Raises:
        TargetCompilerError: the compiler is not installed, or not tested.
    """
    hosts = host_layout([host for host in range(target.hosts) for _ in range(target.devices_per_host)])
    flags = code_flags(os.environ.get("XLA_FLAGS", ""))
    return DeviceDescription(device_kind_of(target), hosts, compiler_version(target), flags)


class TargetRunner(SequentialBackend):
    """Compiles for a target, and models what was compiled.

    Args:
        target: The target.
        options: The time limit of a program.
    """

    def __init__(self, target: Target, options: MeasureOptions) -> None:
        super().__init__()
        self._target = target
        self._supervisor = Supervisor(options, _COMMAND)

    def start(self) -> None:
        """Start the worker; see `Supervisor.start`."""
        self._supervisor.start(TargetSetup("cpu", (), (), jax_config(), target=self._target))

    def do(self, task: Task) -> Generator[TaskEvent]:
        self.start()
        return self._supervisor.do(task)

    def close(self) -> None:
        self._supervisor.close()
