"""The process that measures: `python -m alpa_cfp.profiling.process.worker CONNECTION BOARD PARENT`.

Takes two open file descriptors and the id of the process that started it (see `protocol`, `isolated`); does its tasks
until the connection ends. Invariants: it holds exactly the devices that it was asked for, or refuses; and it ends with
its parent, whatever it is doing. It imports jax, but neither alpa nor Ray. A host of a mesh of several ends as soon as
a program has failed: the others may be in the middle of it, and what came next would not meet them in the same place.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import jax

from alpa_cfp.profiling.process.compiling import compile_group, cores
from alpa_cfp.profiling.process.events import Finished, Started
from alpa_cfp.profiling.process.group import Loaded, measure_group
from alpa_cfp.profiling.process.protocol import CompileTask, Messages, ProgressFile, Ready, Setup, Task, TaskDone
from alpa_cfp.profiling.process.setups import set_up_jax
from alpa_cfp.spmd.compile.executable import Client
from alpa_cfp.spmd.distributed.host_client import HostClient
from alpa_cfp.spmd.distributed.runtime import devices_of_all_hosts, join
from alpa_cfp.spmd.module.hlo_module import HloModule

_LOOK_EVERY_S = 1.0
_SIGNAL_AT_PARENTS_DEATH = 1  # PR_SET_PDEATHSIG of linux/prctl.h


def main() -> None:
    """Measure until the parent ends the connection, or ends."""
    connection, board, parent = (int(argument) for argument in sys.argv[1:])
    if sys.platform == "linux":
        # Also if this process is stopped then. By parent Linux means the thread that has started this process.
        ctypes.CDLL(None).prctl(_SIGNAL_AT_PARENTS_DEATH, signal.SIGKILL)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with Messages(connection) as to_parent:
        try:
            _serve(to_parent, ProgressFile(board))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return  # nobody wants to know any more


def _serve(connection: Messages, board: ProgressFile) -> None:
    setup: Setup = connection.recv()
    ready, client = _set_up(setup)
    connection.send(ready)
    kept: dict[bytes, Loaded] = {}
    while client is not None:
        for event in _events(connection.recv(), client, cores() // setup.share, kept, board):
            connection.send(event)
            if setup.place is not None and event.profile.failure not in (None, "compile_failed"):
                return
        connection.send(TaskDone())


def _events(
    task: CompileTask | Task, client: Client, at_once: int, kept: dict[bytes, Loaded], board: ProgressFile
) -> Iterator[Finished]:
    modules = [HloModule.from_serialized(module) for module in task.modules]
    if isinstance(task, CompileTask):
        yield from compile_group(modules, client, task.alone, at_once, kept, board.write)
        return
    for event in measure_group(modules, client, task.samples, task.drawn, kept):
        if isinstance(event, Started):
            board.write(event)
        else:
            yield event


def _set_up(setup: Setup) -> tuple[Ready, Client | None]:
    set_up_jax(setup.jax_config)
    if setup.place is None:
        by_id = {device.id: device for device in jax.devices(setup.platform)}
    else:
        join(setup.place)
        by_id = dict(enumerate(devices_of_all_hosts()))
    if missing := [number for number in setup.device_ids if number not in by_id]:
        return Ready(refusal=f"it has {len(by_id)} {setup.platform} devices, and none with the ids {missing}"), None
    devices = [by_id[number] for number in setup.device_ids]
    kinds = tuple(device.device_kind for device in devices)
    if kinds != setup.device_kinds:
        return Ready(refusal=f"its devices are {kinds}, and those of the mesh are {setup.device_kinds}"), None
    return Ready(), Client(devices) if setup.place is None else HostClient(devices)


def _end_with(parent: int) -> None:
    """End this process as soon as another one has become its parent; while it is busy, it reads no connection."""
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_S)
    os._exit(1)


if __name__ == "__main__":
    main()
