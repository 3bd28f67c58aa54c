"""Messages between the worker process, which measures, and the process that supervises it.

Values go pickled over a `MessageConnection`: a `Setup` and its `Ready` once, then tasks. A `CompileTask` is answered by
a `Finished` for each program that cannot be compiled, a `MeasureTask` by one for each program, and both by `TaskDone`
at the end. The worker writes its current activity to a `ProgressFile` instead of sending it: a message for each run
would wake the other process in the middle of the run. On a mesh of several hosts each host has a worker, and all
workers get the same tasks (`hosts`). Invariant: nothing here imports JAX, so a process that only passes messages on
needs none.
"""

import os
import pickle
import random
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal, get_args

from alpa_cfp.database import Failure, Profile, StepTimeline, utc_now
from alpa_cfp.spmd.distributed.host_place import HostPlace

Stage = Literal["compile", "run", "inspect"]

_STAGES: tuple[Stage, ...] = get_args(Stage)
_ENTRY = struct.Struct("<qqd")
_IDLE = -1
# The words of XLA, Python and C++ for running out of memory.
_OUT_OF_MEMORY = ("resource_exhausted", "out of memory", "bad_alloc", "memoryerror")


@dataclass(frozen=True, slots=True)
class Setup:
    """The state that the worker needs before its first task.

    Attributes:
        platform: Of the devices.
        device_ids: The devices, in the order of the logical mesh; on a mesh of several hosts their positions among the
            devices of all hosts.
        device_kinds: The kinds that they must have, in the same order.
        jax_config: The settings of `jax.config`; those that affect generated code must be the same.
        place: The worker's host in the mesh; None: the mesh has the devices of this process alone.
        environment: Variables that are added to, or replace, those of the process that starts the worker.
        share: The number of processes of the mesh that share the cores of this machine.
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
    """The worker has its devices, or `refusal` is the reason why it cannot work."""

    refusal: str = ""


@dataclass(frozen=True, slots=True)
class CompileTask:
    """A group of programs to be compiled, for the task after this one.

    Attributes:
        modules: The programs, by `HloModule.as_serialized_hlo_module_proto`.
        alone: The indexes of those that are compiled while no other one is.
    """

    modules: tuple[bytes, ...]
    alone: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MeasureTask:
    """A group of programs to be timed, each `samples` times, in an order that `rng` draws.

    Attributes:
        references: The number of programs, the first ones, that tell how fast the mesh is; they run more often.
    """

    modules: tuple[bytes, ...]
    samples: int
    rng: random.Random
    references: int = 0


Task = CompileTask | MeasureTask


@dataclass(frozen=True, slots=True)
class Started:
    """The program with this index is now compiled, or run once, or its executable is inspected."""

    index: int
    stage: Stage


@dataclass(frozen=True, slots=True)
class Finished:
    """The program with this index has its profile.

    Attributes:
        is_permanent: False for a failure that the program did not cause; such a profile is not recorded.
        timeline: Of a program whose time was modelled.
    """

    index: int
    profile: Profile
    is_permanent: bool = True
    timeline: StepTimeline | None = None


@dataclass(frozen=True, slots=True)
class Suspected:
    """The process ended while the programs with these indexes were compiled at the same time."""

    indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TaskDone:
    """The whole task was done."""


TaskEvent = Finished | Suspected | TaskDone


@dataclass(frozen=True, slots=True)
class Activity:
    """A stage of a program that has been going on for `elapsed_s`."""

    index: int
    stage: Stage
    elapsed_s: float


def failed(message: str, failure: Failure) -> Profile:
    """The profile of a program that failed; a message about memory makes it "out_of_memory"."""
    if any(words in message.lower() for words in _OUT_OF_MEMORY):
        failure = "out_of_memory"
    return Profile(status="failed", created_at=utc_now(), failure=failure, failure_message=message)


class MessageConnection(Connection):
    """One end of a connection on which values go pickled.

    `Connection.send` leaves a view of a `BytesIO` in its frame. Where the other end is gone, the error keeps the frame,
    and early releases of Python 3.12 crash when they collect both as garbage (python/cpython#111211, seen with 3.12.1).
    A view of bytes does no harm.
    """

    def send(self, obj: Any) -> None:
        """Send a value.

        Raises:
            BrokenPipeError, ConnectionResetError: the other end is closed.
        """
        self.send_bytes(pickle.dumps(obj, pickle.HIGHEST_PROTOCOL))

    def recv(self) -> Any:
        """Wait for a value.

        Raises:
            EOFError, ConnectionResetError: the other end is closed.
        """
        return pickle.loads(self.recv_bytes())


class ProgressFile:
    """An open file, shared by both processes, in which each thread of the worker writes its current activity.

    Its clock is the machine's monotonic one, which all processes share.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def clear(self) -> None:
        """Remove all activities."""
        os.ftruncate(self._descriptor, 0)

    def write(self, started: Started | None, thread: int = 0) -> None:
        """Replace the activity of a thread; None for no activity."""
        index, stage = (_IDLE, _STAGES[0]) if started is None else (started.index, started.stage)
        entry = _ENTRY.pack(index, _STAGES.index(stage), time.monotonic())
        os.pwrite(self._descriptor, entry, thread * _ENTRY.size)

    def read(self) -> tuple[Activity, ...]:
        """The current activities, the longest one first."""
        size = os.fstat(self._descriptor).st_size
        written = os.pread(self._descriptor, size - size % _ENTRY.size, 0)
        now = time.monotonic()
        # The file has zeros where a thread has not written yet and one with a higher number has.
        entries = [entry for entry in _ENTRY.iter_unpack(written) if entry[0] != _IDLE and entry[2] > 0]
        entries.sort(key=lambda entry: entry[2])
        return tuple(Activity(index, _STAGES[stage], now - since) for index, stage, since in entries)
