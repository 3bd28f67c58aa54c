"""What the processes of hosts are started with, and what is said of one that cannot be."""

from types import SimpleNamespace
from typing import Any

import pytest

from alpa_on_jax import errors
from alpa_on_jax.ray_mesh.failures.calling import call_on_hosts
from alpa_on_jax.ray_mesh.processes.launching import environment


def config(backend: str, *, efa: bool = False) -> Any:
    return SimpleNamespace(
        backend=backend,
        use_aws_efa=efa,
        xla_client_mem_fraction=0.8,
        xla_client_client_preallocate="false",
        xla_gpu_autotune_level=4,
    )


def test_the_drivers_number_of_devices_is_not_the_hosts() -> None:
    of_driver = {"XLA_FLAGS": "--a=1 --xla_force_host_platform_device_count=8 --b=2", "HOME": "/home"}
    variables = environment(of_driver, config("cpu"), 0)
    assert variables["XLA_FLAGS"] == "--a=1 --b=2"
    assert variables["JAX_PLATFORMS"] == "cpu"
    assert "HOME" not in variables


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_a_host_joins_no_cluster_by_itself(backend: str) -> None:
    assert environment({}, config(backend), 0)["RAY_ENABLE_AUTO_CONNECT"] == "0"


def test_a_host_with_gpus_has_alpas_options_for_them() -> None:
    variables = environment({"NCCL_DEBUG": "INFO"}, config("gpu"), 1)
    assert variables["JAX_PLATFORMS"] == "cuda"
    assert variables["XLA_FLAGS"] == "--xla_gpu_autotune_level=4"
    assert variables["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.8"
    assert variables["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert variables["NCCL_DEBUG"] == "VERSION"
    assert "FI_PROVIDER" not in variables


def test_a_host_on_efa_has_its_provider() -> None:
    assert environment({}, config("gpu", efa=True), 0)["FI_PROVIDER"] == "efa"


def test_nothing_is_called_on_a_mesh_that_has_ended() -> None:
    mesh = SimpleNamespace(workers=(), node_ips=["10.0.0.1-aa", "10.0.0.2-bb"])
    with pytest.raises(errors.MeshEndedError, match=r"the mesh on 10.0.0.1-aa, 10.0.0.2-bb has ended"):
        call_on_hosts(mesh, print)


def test_a_host_that_died_is_told_with_the_last_line_of_its_reason() -> None:
    error = errors.HostError.no_start("10.0.0.1-aa", RuntimeError("Traceback ...\nValueError: no such platform.\n"))
    assert "on host 10.0.0.1-aa could not be started: ValueError: no such platform. It needs" in str(error)


def test_a_host_with_other_devices_than_ray_offers_says_both_numbers() -> None:
    assert "host 1 of the mesh has 2 devices and not 4" in str(errors.HostError.other_devices(1, 4, 2))
