"""Starts the processes of a mesh, and ends them.

Takes a `DistributedPhysicalDeviceMesh` that knows its hosts; gives back the service of its runtime and a handle of each
host's process, all of which have answered. Invariant: after `end`, and after a start that failed, no process and no
service of the mesh is left, and the devices are free again.
"""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from alpa_cfp.spmd.distributed import runtime as jax_runtime
from alpa_cfp.spmd.distributed.host_place import HostPlace
from alpa_on_jax import errors
from alpa_on_jax.ray_mesh.cluster import hosts
from alpa_on_jax.ray_mesh.failures.ending import end_processes
from alpa_on_jax.ray_mesh.failures.limits import Limits

log = logging.getLogger("alpa_on_jax")

_PLATFORMS = {"gpu": "cuda", "cpu": "cpu"}
# A host process has as many devices as the mesh says.
_DEVICES_FLAG = re.compile(r"--xla_force_host_platform_device_count=\S*")
# Options of alpa that are about the machine of the process that reads them.
_NOT_SENT = ("has_cuda",)


def launch(mesh: Any, config: Any, placement_group: Any) -> tuple[jax_runtime.Service, list[Any]]:
    """Start the service of a mesh and the process of each of its hosts, and wait until all are joined.

    Args:
        mesh: Alpa's `DistributedPhysicalDeviceMesh`, without processes yet.
        config: Alpa's `global_config`.
        placement_group: Holds the hosts' devices.

    Raises:
        errors.HostError: a process could not be started, or did not come in time.
        errors.NoPortError: there is no port for the service.
    """
    limits: Limits = config.host_limits
    _check_nodes(mesh)
    service = service_of(mesh, config)
    workers: list[Any] = []
    try:
        for host in range(mesh.num_hosts):
            workers.append(_start(mesh, host, service.address, config, placement_group))
        _wait_for(workers, mesh, limits.create_s)
    except BaseException:
        end_processes(workers, service)
        raise
    log.info("a mesh of %d x %d devices is up", mesh.num_hosts, mesh.num_devices_per_host)
    return service, workers


def service_of(mesh: Any, config: Any) -> jax_runtime.Service:
    """Start the service of a mesh's runtime, in this process.

    Args:
        mesh: Alpa's `DistributedPhysicalDeviceMesh`.
        config: Alpa's `global_config`.

    Raises:
        errors.NoPortError: there is no port for it.
    """
    import ray

    limits: Limits = config.host_limits
    # Alpa's options, which firewalls are set up for.
    ports = range(config.xla_server_port_start, config.xla_server_port_end)
    return jax_runtime.start_service(
        ray.util.get_node_ip_address(), ports, mesh.num_hosts, limits.heartbeat_s, limits.shutdown_s
    )


def place_of(mesh: Any, host: int, service: str, config: Any) -> HostPlace:
    """What a process must know to be one of the mesh's hosts.

    Args:
        mesh: Alpa's `DistributedPhysicalDeviceMesh`.
        host: The number of the host.
        service: Where the mesh's service listens.
        config: Alpa's `global_config`.
    """
    limits: Limits = config.host_limits
    return HostPlace(
        service,
        mesh.num_hosts,
        host,
        mesh.host_info[host][hosts.ADDRESS],
        _PLATFORMS[config.backend],
        mesh.num_devices_per_host,
        jax.config.values["jax_enable_x64"],
        limits.connect_s,
        limits.heartbeat_s,
        limits.shutdown_s,
        limits.call_s,
    )


def _start(mesh: Any, host: int, service: str, config: Any, placement_group: Any) -> Any:
    """The handle of a process that is being started for a host."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from alpa_on_jax.ray_mesh.processes.ray_host import HEALTH, RayHost

    info, num_devices = mesh.host_info[host], mesh.num_devices_per_host
    resource = hosts.RESOURCE_NAMES[config.backend]
    needs: dict[str, Any] = (
        {"num_gpus": num_devices} if resource == hosts.GPU else {"resources": {resource: num_devices}}
    )
    remote: Any = ray.remote
    actor = remote(num_cpus=0, max_restarts=0, concurrency_groups={HEALTH: 1}, **needs)(RayHost)
    node_of_bundle = hosts.node_of_bundle(placement_group)
    held = hosts.bundles_with(resource, placement_group.bundle_specs)
    bundle = next(index for index in held if node_of_bundle[index] == info["NodeID"])
    place = place_of(mesh, host, service, config)
    options = {name: value for name, value in vars(config).items() if name not in _NOT_SENT}
    return actor.options(
        scheduling_strategy=PlacementGroupSchedulingStrategy(placement_group, bundle),
        name=mesh.get_host_worker_name(host),
        runtime_env={"env_vars": environment(os.environ, config, host)},
    ).remote(place, mesh.mesh_id, config.runtime_random_seed, options)


def environment(of_driver: Mapping[str, str], config: Any, host: int) -> dict[str, str]:
    """The environment variables of a host's process, beside those of Ray's own processes on its node.

    Args:
        of_driver: Those of the driver.
        config: Alpa's `global_config`.
        host: The number of the host.
    """
    flags = _DEVICES_FLAG.sub("", of_driver.get("XLA_FLAGS", ""))
    variables = {
        # Nothing may join or start a cluster by itself there.
        "RAY_ENABLE_AUTO_CONNECT": "0",
        "JAX_PLATFORMS": _PLATFORMS[config.backend],
    }
    if config.backend == "gpu":
        flags += f" --xla_gpu_autotune_level={config.xla_gpu_autotune_level}"
        variables["NCCL_USE_MULTISTREAM"] = "False"
        variables["XLA_PYTHON_CLIENT_MEM_FRACTION"] = str(config.xla_client_mem_fraction)
        variables["XLA_PYTHON_CLIENT_PREALLOCATE"] = config.xla_client_client_preallocate
        for name in ("XLA_PYTHON_CLIENT_ALLOCATOR", "LD_LIBRARY_PATH"):
            if name in of_driver:
                variables[name] = of_driver[name]
        if "NCCL_DEBUG" in of_driver:
            variables["NCCL_DEBUG"] = of_driver["NCCL_DEBUG"] if host == 0 else "VERSION"
        if config.use_aws_efa:
            variables |= {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "NCCL_PROTO": "simple"}
    return variables | {"XLA_FLAGS": " ".join(flags.split())}


def _check_nodes(mesh: Any) -> None:
    """Hold that the nodes of a mesh are still there; Ray would wait for one that has left to come back."""
    import ray

    there = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    for info in mesh.host_info:
        if info["NodeID"] not in there:
            raise errors.HostError.no_node(info[hosts.KEY])


def _wait_for(workers: Sequence[Any], mesh: Any, limit_s: float) -> None:
    """Wait until all processes have answered."""
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

    answers = [worker.check_alive.remote() for worker in workers]
    try:
        # One that fails ends the wait, whichever it is.
        ray.get(answers, timeout=limit_s)
    except (GetTimeoutError, RayActorError, RayTaskError) as first:
        for host, answer in enumerate(answers):
            key = mesh.host_info[host][hosts.KEY]
            try:
                ray.get(answer, timeout=0)
            except (RayActorError, RayTaskError) as error:
                raise errors.HostError.no_start(key, error) from error
            except GetTimeoutError as error:
                if isinstance(first, GetTimeoutError):
                    raise errors.HostError.late(key, limit_s) from error
