"""What the process that measures and the one that asks say to each other.

Takes a connection between both, on which these values go pickled: a `Setup` and its `Ready` once, then tasks. For a
`CompileTask` there is a `Finished` for each program that cannot be compiled, for a `Task` one for each program, and
`TaskDone` after them. The worker's current activity is not sent but written to a `ProgressFile`: a message for each run
would wake the other process in the middle of it. On a mesh of several hosts each host has such a process, and all get
the same tasks (`hosts`).
"""

import os
import pickle
import random
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, get_args

from alpa_cfp.profiling.process.events import Stage, Started
from alpa_cfp.spmd.distributed.host_place import HostPlace

_ENTRY = struct.Struct("<qqd")
_NOTHING = -1
_STAGES: tuple[Stage, ...] = get_args(Stage)


@dataclass(frozen=True, slots=True)
class Setup:
    """What the worker needs before its first task.

    Attributes:
        platform: Of the devices.
        device_ids: The devices, in the order of the logical mesh; on a mesh of several hosts their places among the
            devices of all hosts.
        device_kinds: What they must be, in the same order.
        jax_config: The settings of `jax.config`; those that decide about code must be the same.
        place: Which host of which mesh the worker is; None: its mesh is of its own devices alone.
        environment: What the worker's environment has beside, or in place of, that of the process that starts it.
        share: How many processes of the mesh have the cores of this machine in common.
    """

    platform: str
    device_ids: tuple[int, ...]
    device_kinds: tuple[str, ...]
    jax_config: dict[str, bool | int | float | str | None]
    place: HostPlace | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    share: int = 1


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has its devices; or it says why it cannot work."""

    refusal: str = ""


@dataclass(frozen=True, slots=True)
class CompileTask:
    """A group of programs (`HloModule.as_serialized_hlo_module_proto`) to be compiled, for the task after this one.

    Attributes:
        modules: The programs.
        alone: The numbers of those that are compiled while no other one is.
    """

    modules: tuple[bytes, ...]
    alone: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """A group of programs to be measured."""

    modules: tuple[bytes, ...]
    samples: int
    drawn: random.Random


@dataclass(frozen=True, slots=True)
class TaskDone:
    """Nothing is left to do of the task."""


@dataclass(frozen=True, slots=True)
class Suspected:
    """The process ended while these programs of the task were compiled at the same time."""

    indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Activity:
    """What has been going on for `elapsed_s`."""

    index: int
    stage: Stage
    elapsed_s: float


class Messages(Connection):
    """A connection, or one end of it, on which values go pickled.

    `Connection.send` leaves a view of a `BytesIO` in its frame. Where the other end is gone, the error keeps the frame,
    and early releases of Python 3.12 crash when they collect both as garbage (python/cpython#111211, seen with 3.12.1).
    A view of bytes does no harm.
    """

    def send(self, obj: Any) -> None:
        """Send a value.

        Raises:
            BrokenPipeError, ConnectionResetError: nobody will receive it.
        """
        self.send_bytes(pickle.dumps(obj, pickle.HIGHEST_PROTOCOL))

    def recv(self) -> Any:
        """Wait for a value.

        Raises:
            EOFError, ConnectionResetError: nobody will send one.
        """
        return pickle.loads(self.recv_bytes())


class ProgressFile:
    """Where the worker writes what it is at, each of its threads in a place of its own: a file that both have open.

    Its clock is the machine's monotonic one, which all processes share.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def clear(self) -> None:
        """Nothing is going on."""
        os.ftruncate(self._descriptor, 0)

    def write(self, started: Started | None, thread: int = 0) -> None:
        """This is what goes on in a thread from now on; None: nothing."""
        index, stage = (_NOTHING, _STAGES[0]) if started is None else (started.index, started.stage)
        entry = _ENTRY.pack(index, _STAGES.index(stage), time.monotonic())
        os.pwrite(self._descriptor, entry, thread * _ENTRY.size)

    def read(self) -> tuple[Activity, ...]:
        """What is going on; what has been for longest comes first."""
        size = os.fstat(self._descriptor).st_size
        written = os.pread(self._descriptor, size - size % _ENTRY.size, 0)
        now = time.monotonic()
        # A thread may have written beyond others that have not begun, where there are only zeros then.
        entries = [entry for entry in _ENTRY.iter_unpack(written) if entry[0] != _NOTHING and entry[2] > 0]
        entries.sort(key=lambda entry: entry[2])
        return tuple(Activity(index, _STAGES[stage], now - since) for index, stage, since in entries)
