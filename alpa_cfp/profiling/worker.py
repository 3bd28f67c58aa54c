"""The process that measures: `python -m alpa_cfp.profiling.worker CONNECTION BOARD PARENT`.

Takes two open file descriptors and the id of the process that started it (see `protocol`, `isolated`); does its tasks
until the connection ends. Invariants: it holds exactly the devices that it was asked for, or refuses; and it ends with
its parent, whatever it is doing. It imports jax, but neither alpa nor Ray.
"""

import os
import sys
import threading
import time
from multiprocessing.connection import Connection

import jax

from alpa_cfp.profiling.group import Loaded, Started, measure_group
from alpa_cfp.profiling.protocol import Board, Ready, Setup, Task, TaskDone
from alpa_on_jax.xla_extension.executable import Client
from alpa_on_jax.xla_extension.hlo_module import HloModule

_LOOK_EVERY_S = 1.0


def main() -> None:
    """Measure until the parent ends the connection, or ends."""
    connection, board, parent = (int(argument) for argument in sys.argv[1:])
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with Connection(connection) as to_parent:
        try:
            _serve(to_parent, Board(board))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return  # nobody wants to know any more


def _serve(connection: Connection, board: Board) -> None:
    ready, client = _set_up(connection.recv())
    connection.send(ready)
    kept: dict[bytes, Loaded] = {}
    while client is not None:
        task: Task = connection.recv()
        modules = [HloModule.from_serialized(module) for module in task.modules]
        for event in measure_group(modules, client, task.samples, task.drawn, kept):
            if isinstance(event, Started):
                board.write(event)
            else:
                connection.send(event)
        connection.send(TaskDone())


def _set_up(setup: Setup) -> tuple[Ready, Client | None]:
    for name, value in setup.jax_config.items():
        if jax.config.values[name] != value:
            jax.config.update(name, value)
    by_id = {device.id: device for device in jax.devices(setup.platform)}
    if missing := [number for number in setup.device_ids if number not in by_id]:
        return Ready(refusal=f"it has {len(by_id)} {setup.platform} devices, and none with the ids {missing}"), None
    client = Client([by_id[number] for number in setup.device_ids])
    return Ready(tuple(device.device_kind for device in client.devices())), client


def _end_with(parent: int) -> None:
    """End this process as soon as another one has become its parent; while it is busy, it reads no connection."""
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_S)
    os._exit(1)


if __name__ == "__main__":
    main()
