"""What the process that measures and the one that asks say to each other.

Takes a connection between both, on which these values go pickled: a `Setup` and its `Ready` once, then for each `Task`
as many `Finished` as there are programs, and `TaskDone`. What the worker is at is not sent but written to a `Board`:
a message for each run would wake the other process in the middle of it. On a mesh of several hosts each host has such a
process, and all get the same tasks (`hosts`).
"""

import os
import random
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from alpa_cfp.profiling.group import Stage, Started
from alpa_on_jax.ray_mesh.jax_runtime import HostPlace

_ENTRY = struct.Struct("<qqd")
_STAGES: tuple[Stage, ...] = get_args(Stage)


@dataclass(frozen=True, slots=True)
class Setup:
    """What the worker needs before its first task.

    Attributes:
        platform: Of the devices.
        device_ids: The devices, in the order of the logical mesh; on a mesh of several hosts their places among the
            devices of all hosts.
        device_kinds: What they must be, in the same order; empty where that is not known yet.
        jax_config: The settings of `jax.config`; those that decide about code must be the same.
        place: Which host of which mesh the worker is; None: its mesh is of its own devices alone.
        environment: What the worker's environment has beside, or in place of, that of the process that starts it.
    """

    platform: str
    device_ids: tuple[int, ...]
    device_kinds: tuple[str, ...]
    jax_config: dict[str, bool | int | float | str | None]
    place: HostPlace | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has these kinds of devices, in the order of the mesh; or it says why it cannot work."""

    device_kinds: tuple[str, ...] = ()
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """A group of programs (`HloModule.as_serialized_hlo_module_proto`) to be measured."""

    modules: tuple[bytes, ...]
    samples: int
    drawn: random.Random


@dataclass(frozen=True, slots=True)
class TaskDone:
    """Every program of the task is finished."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What has been going on for `elapsed_s`."""

    index: int
    stage: Stage
    elapsed_s: float


class Board:
    """Where the worker writes what it is at: a file that both processes have open.

    Its clock is the machine's monotonic one, which all processes share.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def clear(self) -> None:
        """Nothing is going on."""
        os.ftruncate(self._descriptor, 0)

    def write(self, started: Started) -> None:
        """This is what goes on from now on."""
        os.pwrite(self._descriptor, _ENTRY.pack(started.index, _STAGES.index(started.stage), time.monotonic()), 0)

    def read(self) -> Activity | None:
        """What is going on."""
        entry = os.pread(self._descriptor, _ENTRY.size, 0)
        if len(entry) < _ENTRY.size:
            return None
        index, stage, since = _ENTRY.unpack(entry)
        return Activity(index, _STAGES[stage], time.monotonic() - since)
