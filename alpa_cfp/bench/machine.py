"""Where, when and with what something was measured: takes nothing, gives back a value for JSON."""

import datetime
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import jax

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "alpa")


def describe() -> dict[str, Any]:
    """The machine, the versions and the time of now."""
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
