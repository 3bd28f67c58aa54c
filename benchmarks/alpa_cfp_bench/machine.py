"""Where, when and with what something was measured: takes the mesh, if it is one of hosts; gives a value for JSON."""

import datetime
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import jax

from alpa_on_jax.ray_mesh.failures.calling import call_on_hosts

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "alpa")
# A host that has run a step knows what it is at once.
_ANSWER_LIMIT_S = 60.0


def describe(mesh: Any = None) -> dict[str, Any]:
    """The machine, the versions and the time of now.

    Args:
        mesh: Alpa's mesh of hosts of a Ray cluster; None if the devices are those of this process.
    """
    of_driver = _describe_driver()
    if mesh is None:
        return of_driver
    hosts = call_on_hosts(mesh, describe_host, limit_s=_ANSWER_LIMIT_S)
    machines = {host["machine"]: host for host in hosts}.values()
    of_one = hosts[0]
    return {
        **of_driver,
        "cpu": ", ".join(sorted({host["cpu"] for host in machines})),
        "cores": sum(host["cores"] for host in machines),
        "devices": f"{len(hosts)} host{'s' * (len(hosts) > 1)} x {of_one['devices']} {of_one['device_kind']}",
        "xla_flags": of_one["xla_flags"],
        "hosts": [{name: value for name, value in host.items() if name != "machine"} for host in hosts],
    }


def describe_host(backend: Any) -> dict[str, Any]:
    """Describe the devices and the machine of a host; runs on each host of a mesh.

    Args:
        backend: The backend of the mesh on this host.
    """
    devices = backend.local_devices()
    return {
        "machine": _machine(),
        "devices": len(devices),
        "device_kind": devices[0].device_kind,
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu_name(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def _machine() -> str:
    """An identifier of this machine: equal for hosts that share its cores."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:  # only Linux has it
        return platform.node()


def _describe_driver() -> dict[str, Any]:
    devices = jax.local_devices()
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
        "devices": f"{len(devices)} x {devices[0].device_kind}",
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # only Linux has it
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
