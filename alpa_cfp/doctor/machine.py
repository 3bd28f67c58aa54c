"""Findings about the devices that JAX sees, and about optional programs and packages: CBC and Ray."""

import glob
import os
from collections import Counter
from pathlib import Path

from alpa_cfp.doctor import tested
from alpa_cfp.doctor.finding import Finding
from alpa_cfp.doctor.probing import Answer
from alpa_on_jax import versions

_GIB = 2**30
_VIRTUAL = "XLA_FLAGS=--xla_force_host_platform_device_count=8"


def devices(answer: Answer) -> Finding:
    """The number, kinds and memory of the devices that JAX sees."""
    if error := answer.error("jax"):
        return Finding("devices", "problem", f"JAX does not import, so it sees none: {error}", "mend JAX (see above)")
    platforms, flags = os.environ.get("JAX_PLATFORMS", ""), os.environ.get("XLA_FLAGS", "")
    if error := answer.error("devices"):
        return Finding("devices", "problem", f"JAX cannot start them: {error}", _devices_fix(platforms, flags, error))
    seen = answer.value("devices", "devices")
    kinds = Counter((device["platform"], device["kind"], device["memory_bytes"]) for device in seen)
    words = ", ".join(_device_words(*kind, count) for kind, count in kinds.items())
    details = {"devices": [{"platform": p, "kind": k, "memory_bytes": m, "count": n} for (p, k, m), n in kinds.items()]}
    on_cpu = all(device["platform"] == "cpu" for device in seen)
    if on_cpu and glob.glob("/dev/nvidia[0-9]*") and "cpu" not in platforms.split(","):
        fix = f"pip install 'jax[cuda12]=={versions.installed_version('jax')}' (or cuda13)"
        return Finding("devices", "problem", f"{words}: this machine has a GPU, and JAX does not use it", fix, details)
    if len(seen) == 1:
        how = f"; {_VIRTUAL} makes 8 of one CPU" if on_cpu else ""
        return Finding("devices", "note", f"{words}: nothing to split over{how}", "", details)
    return Finding("devices", "ok", words, details=details)


def solver(answer: Answer) -> Finding:
    """Whether CBC runs, the solver of Alpa's ILP."""
    check, bad = "ILP solver", tested.severity("pulp")
    version = versions.installed_version("pulp")
    if version is None:
        return Finding(check, bad, "PuLP is not installed, which brings CBC", tested.adding("pulp"))
    details, anew = {"pulp": version}, tested.reinstalling("pulp")
    if error := answer.error("solver"):
        return Finding(check, bad, f"PuLP {version}, but CBC does not run: {error}", anew, details)
    if not answer.value("solver", "runs"):
        return Finding(check, bad, f"PuLP {version} does not find CBC on this machine", anew, details)
    if not answer.value("solver", "right"):
        return Finding(check, bad, f"CBC of PuLP {version} gives a wrong solution", anew, details)
    if tested.how_known("pulp", version) != "tested":
        return Finding(
            check, "note", f"CBC of PuLP {version} runs; tested with {tested.tested_words('pulp')}", "", details
        )
    return Finding(check, "ok", f"CBC of PuLP {version} solves", details=details)


def ray(answer: Answer, cluster: Answer | None) -> Finding:
    """Whether Ray imports, and, if the probe `cluster` was run, whether a new cluster runs a task.

    Only meshes of several processes need Ray, so its absence is a problem only if the probe was run.
    """
    version = versions.installed_version("ray")
    details = {"version": version, "tested": list(tested.TESTED["ray"])}
    fix = tested.adding("ray")
    bad = "note" if cluster is None else "problem"
    only = "; only meshes of several processes need it"
    if version is None:
        return Finding("Ray", bad, f"it is not installed{only}", fix, details)
    if error := answer.error("ray"):
        return Finding(
            "Ray", bad, f"{version}, but `import ray` fails: {error}{only}", tested.reinstalling("ray"), details
        )
    known = tested.how_known("ray", version)
    if known == "unsuitable":
        return Finding("Ray", bad, f"{version} is not what is needed: {tested.NEEDED['ray']}{only}", fix, details)
    found = version if known == "tested" else f"{version} (tested with {tested.tested_words('ray')})"
    if cluster is not None:
        if error := cluster.error("cluster"):
            fix = "look at the free memory and at the space in the temporary folder, then try once more"
            return Finding("Ray", "problem", f"{found}, but a cluster of one CPU does not run: {error}", fix, details)
        if not cluster.value("cluster", "right"):
            return Finding("Ray", "problem", f"{found}, but a task gives a wrong result", fix, details)
        found = f"{found}; a cluster of one CPU was started, ran a task and was stopped"
    else:
        found = f"{found} imports{only} (--ray tries a cluster of one CPU)"
    return Finding("Ray", "ok" if known == "tested" else "note", found, "", details)


def memory_of_machine_bytes() -> int:
    """The memory of this machine, or of this container if that has less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    try:
        return min(total, int(limit.read_text()))
    except (OSError, ValueError):  # no such control group, or "max"
        return total


def _devices_fix(platforms: str, flags: str, error: str) -> str:
    # XLA ends the process if it cannot parse its flags.
    if flags and "flag" in error.lower():
        return f"XLA_FLAGS is {flags!r}: unset it, or mend it"
    for_gpus = f"for NVIDIA GPUs: pip install 'jax[cuda12]=={versions.installed_version('jax')}' (or cuda13)"
    if platforms:
        return f"JAX_PLATFORMS is {platforms!r}, which JAX does not find on this machine: unset it; {for_gpus}"
    return f"JAX_PLATFORMS=cpu works without any accelerator; {for_gpus}"


def _device_words(platform: str, kind: str, memory_bytes: int | None, count: int) -> str:
    if platform == "cpu":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        machine = f"{cores} {'core' if cores == 1 else 'cores'}, {memory_of_machine_bytes() / _GIB:.1f} GiB of memory"
        return f"1 CPU device ({machine})" if count == 1 else f"{count} virtual CPU devices (on {machine})"
    memory = "" if memory_bytes is None else f", {memory_bytes / _GIB:.1f} GiB for JAX{' each' if count > 1 else ''}"
    return f"{count} x {kind} ({platform}{memory})"
