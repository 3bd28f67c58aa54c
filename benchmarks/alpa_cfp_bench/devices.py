"""How many devices jax shall have on a CPU; imports no jax, since jax reads it when it starts."""

import os

DEVICES_FLAG = "--xla_force_host_platform_device_count"


def ask_for_virtual_devices(count: int) -> None:
    """Make one CPU so many devices, unless the user has said how many; call it before anything imports jax.

    Devices of other kinds are not touched by it.
    """
    given = os.environ.get("XLA_FLAGS", "")
    # XLA takes what begins with no dash for the name of a file with flags.
    if DEVICES_FLAG not in given and (not given.strip() or given.strip().startswith("-")):
        os.environ["XLA_FLAGS"] = f"{given} {DEVICES_FLAG}={count}".strip()
