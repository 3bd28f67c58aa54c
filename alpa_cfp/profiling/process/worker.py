"""The worker process: `python -m alpa_cfp.profiling.process.worker CONNECTION PROGRESS PARENT`.

Takes two open file descriptors (see `protocol`) and the id of the process that started it (see `supervisor`); does its
tasks until the connection ends. Invariants: it has exactly the devices of its setup, or refuses; and it ends with its
parent, whatever it is doing. It imports jax, but neither alpa nor Ray. On a mesh of several hosts it ends as soon as a
program has failed: the other hosts may be in the middle of that program, and would not meet this one in the next.
"""

import ctypes
import os
import signal
import sys
import threading
import time

import jax

from alpa_cfp.profiling.process.group import Loaded, cores, do_task
from alpa_cfp.profiling.process.protocol import (
    MessageConnection,
    ProgressFile,
    Ready,
    Setup,
    TaskDone,
)
from alpa_cfp.profiling.process.setups import set_up_jax
from alpa_cfp.spmd.compile.executable import Client
from alpa_cfp.spmd.distributed.host_client import HostClient
from alpa_cfp.spmd.distributed.runtime import devices_of_all_hosts, join

_PARENT_CHECK_S = 1.0
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def main() -> None:
    """Measure until the parent ends the connection, or ends."""
    connection, progress, parent = (int(argument) for argument in sys.argv[1:])
    if sys.platform == "linux":
        # Also if this process is stopped then. By parent Linux means the thread that has started this process.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with MessageConnection(connection) as to_parent:
        try:
            _serve(to_parent, ProgressFile(progress))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return  # the parent needs nothing more


def _serve(connection: MessageConnection, progress: ProgressFile) -> None:
    setup: Setup = connection.recv()
    ready, client = _set_up(setup)
    connection.send(ready)
    loaded: dict[bytes, Loaded] = {}
    while client is not None:
        for event in do_task(connection.recv(), client, cores() // setup.share, loaded, progress.write):
            connection.send(event)
            if setup.place is not None and event.profile.failure not in (None, "compile_failed"):
                return
        connection.send(TaskDone())


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
    """End this process once it has another parent; a busy worker does not notice that its connection has ended."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os._exit(1)


if __name__ == "__main__":
    main()
