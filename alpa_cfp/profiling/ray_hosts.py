"""The hosts of a mesh that Ray manages, as `hosts` measures on them: a supervisor on each, which is a Ray actor.

Takes alpa's mesh; gives what measures on a mesh of processes of its own, on the same nodes and devices. The mesh's own
processes hold the user's arrays, which a program that crashes must not take along. The only module of this package that
calls Ray; it imports it, and alpa, when it is called. Invariant: a supervisor ends with `end`, or when the driver's
connection to Ray does.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from alpa_cfp.profiling.group import Finished
from alpa_cfp.profiling.hosts import HostLostError, HostsWorker
from alpa_cfp.profiling.isolated import jax_config
from alpa_cfp.profiling.keys import DeviceDescription, host_layout
from alpa_cfp.profiling.options import MeasureOptions
from alpa_cfp.profiling.protocol import Setup, Task, TaskDone
from alpa_cfp.profiling.supervisor import Supervisor
from alpa_on_jax.ray_mesh import hosts as nodes
from alpa_on_jax.ray_mesh import launching
from alpa_on_jax.ray_mesh.calling import call_on_hosts
from alpa_on_jax.ray_mesh.jax_runtime import Service

# A supervisor that has said nothing for so long is asked whether it is there, and may take so long to answer.
_SILENT_S = 5.0
_ANSWER_S = 10.0
_HEALTH = "health"


class RayHost:
    """A node of a Ray cluster, with a supervisor from `start` to `end`.

    Args:
        name: As people know it.
        node: Ray's id of the node.
        options: The limits of a program's time.
        create_s: How long it may take until the supervisor is there and has joined the others.
    """

    def __init__(self, name: str, node: str, options: MeasureOptions, create_s: float) -> None:
        self.name = name
        self._node, self._options, self._create_s = node, options, create_s
        self._actor: Any = None

    def start(self, setup: Setup) -> tuple[str, ...]:
        """See `hosts.Host`."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.end()
        options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "concurrency_groups": {_HEALTH: 1}}
        made: Any = ray.remote(**options)(Supervisor)
        here = NodeAffinitySchedulingStrategy(self._node, soft=False)
        self._actor = made.options(scheduling_strategy=here).remote(self._options)
        return self._get(self._actor.start.remote(setup), self._create_s)

    def measure(self, task: Task) -> Iterator[Finished | TaskDone]:
        """See `hosts.Host`."""
        import ray

        coming = self._actor.measure.options(num_returns="streaming").remote(task)
        while True:
            ready, _ = ray.wait([coming], timeout=_SILENT_S, fetch_local=False)
            if not ready:
                self._get(self._actor.is_alive.options(concurrency_group=_HEALTH).remote(), _ANSWER_S)
                continue
            try:
                reference = next(coming)
            except StopIteration:
                return
            yield self._get(reference, _ANSWER_S)

    def end(self) -> None:
        """See `hosts.Host`."""
        import ray
        from ray.exceptions import RayError

        actor, self._actor = self._actor, None
        # Ray would connect this process again to whatever it finds.
        if actor is not None and ray.is_initialized():
            with contextlib.suppress(RayError):
                ray.kill(actor)

    def _get(self, reference: Any, limit_s: float) -> Any:
        import ray
        from ray.exceptions import GetTimeoutError, RayError, RayTaskError

        try:
            return ray.get(reference, timeout=limit_s)
        except GetTimeoutError as error:
            raise HostLostError(f"it has not answered for {limit_s:g} s") from error
        except RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else HostLostError(str(error)) from error
        except RayError as error:
            raise HostLostError(str(error).partition("\n")[0]) from error


def measurer_of(mesh: Any, positions: Sequence[int], options: MeasureOptions) -> tuple[HostsWorker, DeviceDescription]:
    """What measures on a mesh's nodes, and what its profiles' keys say of the devices.

    Args:
        mesh: Alpa's `DistributedPhysicalDeviceMesh`, with its processes.
        positions: For each device of the logical mesh, in its order, its place among the devices of all hosts.
        options: How to measure.
    """
    from alpa.global_env import global_config

    config: Any = global_config
    limits = config.host_limits
    environments = [launching.environment(os.environ, config, host) for host in range(mesh.num_hosts)]
    # A supervisor holds no GPUs of its own: those of the mesh's process are named.
    kinds, visible = zip(*call_on_hosts(mesh, _devices, limit_s=limits.create_s), strict=True)

    def new_mesh() -> tuple[Service, list[Setup]]:
        service = launching.service_of(mesh, config)
        places = [launching.place_of(mesh, host, service.address, config) for host in range(mesh.num_hosts)]
        return service, [
            Setup(place.platform, (), (), jax_config(), place, {**environment, **seen})
            for place, environment, seen in zip(places, environments, visible, strict=True)
        ]

    hosts = [
        RayHost(info[nodes.KEY], info["NodeID"], options, limits.create_s + limits.connect_s) for info in mesh.host_info
    ]
    layout = host_layout([position // mesh.num_devices_per_host for position in positions])
    devices = DeviceDescription.compiled_here(kinds[0], layout, environments[0]["XLA_FLAGS"])
    return HostsWorker(hosts, positions, new_mesh, options), devices


def _devices(backend: Any) -> tuple[str, dict[str, str]]:
    """In a process of the mesh: of which kind its devices are, and which GPUs of the machine."""
    variable = "CUDA_VISIBLE_DEVICES"
    seen = {variable: os.environ[variable]} if backend.platform == "gpu" and variable in os.environ else {}
    return backend.devices()[0].device_kind, seen
