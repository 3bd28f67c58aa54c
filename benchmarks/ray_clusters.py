"""A Ray cluster on this machine for the time of a benchmark: nodes of virtual CPU devices, in a folder of their own.

Invariant: no cluster of somebody else is joined, and nothing is left.
"""

import contextlib
import importlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from alpa_on_jax.ray_mesh.cluster.hosts import CPU_DEVICE


@contextlib.contextmanager
def cluster(*devices_of_nodes: int, cpus: int = 4, cores: Sequence[int] | None = None) -> Iterator[Any]:
    """While the context lasts, a node for each number of devices, and this process connected to the first.

    Gives Ray's `Cluster`. Each node says that it has so many CPUs; all its processes run on the core with its number in
    `cores`, if they are given.
    """
    with tempfile.TemporaryDirectory(prefix="alpa-ray-", ignore_cleanup_errors=True) as folder:
        (Path(folder) / "ray").mkdir()
        os.environ.pop("RAY_ADDRESS", None)
        # Ray reads them when it is imported.
        os.environ |= {"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "RAY_LOG_TO_DRIVER": "0"}
        from ray.cluster_utils import Cluster

        ray: Any = importlib.import_module("ray")

        nodes: Any = Cluster()
        try:
            for place, number in enumerate(devices_of_nodes):
                options = {"resources": {CPU_DEVICE: number}, "object_store_memory": 200 * 2**20}
                with _on(None if cores is None else cores[place]):
                    nodes.add_node(num_cpus=cpus, include_dashboard=False, **options)
            ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
            yield nodes
        finally:
            ray.shutdown()
            nodes.shutdown()


@contextlib.contextmanager
def _on(core: int | None) -> Iterator[None]:
    """Processes that are started in this context run on one core, if it is given."""
    before = os.sched_getaffinity(0)
    try:
        if core is not None:
            os.sched_setaffinity(0, {core})
        yield
    finally:
        os.sched_setaffinity(0, before)
