"""The service of a mesh and the processes that join it, without Ray."""

import pickle
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from alpa_cfp.spmd.distributed.host_place import HostPlace
from alpa_cfp.spmd.distributed.runtime import start_service
from alpa_on_jax import errors

pytestmark = pytest.mark.slow

IP = "127.0.0.1"
PLACE = HostPlace("", 2, 0, IP, "cpu", 2, False, 30, 10, 5)

# What a host does first; it prints what it finds, and the sum over all devices of their numbers.
HOST = """
import pickle, sys
from alpa_cfp.spmd.distributed import runtime as jax_runtime
client = jax_runtime.join(pickle.loads(bytes.fromhex(sys.argv[1])))
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Mesh
devices = jax_runtime.devices_of_all_hosts()
sharding = NamedSharding(Mesh(np.array(devices), "x"), PartitionSpec("x"))
numbers = jax.make_array_from_callback((len(devices),), sharding, lambda index: np.arange(len(devices))[index])
total = jax.jit(jnp.sum, out_shardings=NamedSharding(sharding.mesh, PartitionSpec()))(numbers)
print([device.process_index for device in devices], total.dtype, int(total))
client.shutdown()
"""


def test_processes_that_join_have_the_devices_of_all_in_one_order() -> None:
    service = start_service(IP, range(20000, 25000), 2, 10, 5)
    try:
        places = [replace(PLACE, service=service.address, host=host, wide=True) for host in (0, 1)]
        started = [
            subprocess.Popen(
                [sys.executable, "-c", HOST, pickle.dumps(place).hex()],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for place in places
        ]
        for process in started:
            out, err = process.communicate(timeout=60)
            # Gloo says before that it has found the others.
            assert out.splitlines()[-1:] == ["[0, 0, 1, 1] int64 6"], err
    finally:
        service.shutdown()


def test_a_port_that_is_taken_is_passed_over() -> None:
    with socket.socket() as taken, socket.socket() as free:
        for each in (taken, free):
            each.bind((IP, 0))
        taken.listen()
        ports = [each.getsockname()[1] for each in (taken, free)]
        free.close()
        service = start_service(IP, ports, 1, 10, 5)
        service.shutdown()
    assert service.address == f"{IP}:{ports[1]}"


def test_a_port_can_be_used_again_when_the_service_has_ended() -> None:
    with socket.socket() as free:
        free.bind((IP, 0))
        ports = [free.getsockname()[1]]
    for _ in range(2):
        start_service(IP, ports, 1, 10, 5).shutdown()


def test_without_a_free_port_there_is_an_error_that_names_them() -> None:
    with socket.socket() as taken:
        taken.bind((IP, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(errors.NoPortError, match=f"no port of {IP} from {port} to {port} is free"):
            start_service(IP, [port], 1, 10, 5)


def test_an_address_of_another_machine_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match="assign requested address"):
        start_service("192.0.2.77", range(20000, 25000), 1, 10, 5)
