"""Rank 1 of a group of two, as a process: `peer.py WHAT IP PORT LOCAL TOKEN`; says where it listens."""

import signal
import sys

import numpy as np

from alpa_on_jax.ray_mesh.transport import Address, Endpoint, Listener


def echo(endpoint: Endpoint) -> None:
    """Send back one array of a known shape, doubled."""
    array = endpoint.recv("there", (1000, 1000), np.float32, 0)
    endpoint.send("back", array * 2, 0)
    endpoint.recv("enough", (), np.int32, 0)


def sleep(endpoint: Endpoint) -> None:
    """Send two arrays, then wait to be killed."""
    endpoint.send("one", np.arange(3), 0)
    endpoint.send("ready", np.array(1), 0)
    signal.pause()


def main(does: str, ip: str, port: str, local: str, token: str) -> None:
    listener = Listener("127.0.0.1", local=bool(local))
    print(listener.address.port, listener.address.local, flush=True)
    addresses = [Address(ip, int(port), local), listener.address]
    with listener.open(1, addresses, bytes.fromhex(token)) as endpoint:
        {"echo": echo, "sleep": sleep}[does](endpoint)


if __name__ == "__main__":
    main(*sys.argv[1:])
