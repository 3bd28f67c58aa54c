"""How long the driver waits for the hosts of a mesh, and the hosts for each other; in seconds, all in one value.

`alpa.global_config.host_limits` is a `Limits`; another one may be put there (`dataclasses.replace`) before a mesh is
made.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds.

    Attributes:
        reserve_s: until Ray has the devices free that a cluster asks for.
        create_s: until every process of a mesh runs and has joined the others.
        connect_s: within that, until a process has found the service in the driver.
        heartbeat_s: for how long a process may be silent until the others take it for dead and end themselves; the
            driver, while it waits, hears of it sooner. A machine that stands still for some seconds is not dead.
        ping_s: until a process says that it is there, whatever it computes; one that is silent for longer is lost.
        call_s: for one thing that a host is asked for: to compile a program, to take a step, to write an array. It
            includes the steps before that its devices still compute.
        settle_s: when something has failed on a host: for the others to come to the end of their work as well.
        shutdown_s: for a mesh to end by itself; then it is ended.
        move_s: in ending, for checkpoints that are still being moved to their folder.
    """

    reserve_s: float = 60
    create_s: float = 90
    connect_s: float = 30
    heartbeat_s: float = 30
    ping_s: float = 10
    call_s: float = 1800
    settle_s: float = 10
    shutdown_s: float = 10
    move_s: float = 600
