"""The worker process: `python -m alpa_cfp.profiling.process.worker CONNECTION PROGRESS PARENT`.

Does its tasks until the connection ends (see `serving`). Invariant: it has exactly the devices of its setup, or
refuses. It imports jax, but neither alpa nor Ray. On a mesh of several hosts it ends as soon as a program has failed:
the other hosts may be in the middle of that program, and would not meet this one in the next.
"""

import jax

from alpa_cfp.profiling.process import serving
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


def main() -> None:
    """Serve until the parent ends the connection, or ends."""
    serving.run(_serve)


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


if __name__ == "__main__":
    main()
