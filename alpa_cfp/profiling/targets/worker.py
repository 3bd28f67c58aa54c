"""The worker process of a target: `python -m alpa_cfp.profiling.targets.worker CONNECTION PROGRESS PARENT`.

Does its tasks until the connection ends (see `serving`). Its setup names the target in the place of a platform.
Invariant: it compiles for that target, or refuses; no device of this machine is used.
"""

from functools import partial

import jax

from alpa_cfp.errors import CFPError
from alpa_cfp.profiling.process import serving
from alpa_cfp.profiling.process.group import cores
from alpa_cfp.profiling.process.protocol import MessageConnection, ProgressFile, Ready, TaskDone
from alpa_cfp.profiling.process.setups import set_up_jax
from alpa_cfp.profiling.targets.tasks import Compiled, do_task
from alpa_cfp.targets.modelled_program import modelled_program
from alpa_cfp.targets.topology import devices_of


def main() -> None:
    """Serve until the parent ends the connection, or ends."""
    serving.run(_serve)


def _serve(connection: MessageConnection, progress: ProgressFile) -> None:
    setup = connection.recv()
    set_up_jax(setup.jax_config)
    try:
        devices = devices_of(setup.target)
    except (CFPError, jax.errors.JaxRuntimeError) as error:
        connection.send(Ready(refusal=str(error)))
        return
    connection.send(Ready())
    known: dict[bytes, Compiled] = {}
    modelled = partial(modelled_program, target=setup.target, devices=devices)
    while True:
        for event in do_task(connection.recv(), modelled, cores(), known, progress.write):
            connection.send(event)
        connection.send(TaskDone())


if __name__ == "__main__":
    main()
