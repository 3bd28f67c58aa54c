"""A Ray cluster of two nodes on this machine, for all tests here; a mesh over both, for those of a module.

Each node offers 4 virtual CPU devices, and claims to have 2 GPUs, which only tests of who holds what ask for. The
cluster has a folder of its own, by which its processes are known: when the last test is over, none may be left.

Invariant: no test joins a cluster of somebody else; `RAY_ADDRESS` and Ray's own note of the last cluster are out of
sight.
"""

import os
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import alpa
import pytest
from alpa.device_mesh import get_global_physical_mesh

from integration.processes import processes_of, wait_until

NUM_HOSTS, NUM_DEVICES = 2, 4


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here. Each process that runs any of it has a cluster of its own."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.ray)
            item.add_marker(pytest.mark.slow)


# Of what a failed test says of processes: how much of each, of how many that wrote something last.
_SHOWN_LINES, _SHOWN_PROCESSES = 15, 4


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to what is said of a failed test what processes of the cluster said last: why one has ended is only there."""
    report = yield
    if report.failed and "RAY_TMPDIR" in os.environ:
        written = Path(os.environ["RAY_TMPDIR"], "ray").glob("session_2*/logs/worker-*.err")
        latest = sorted((path for path in written if path.stat().st_size), key=lambda path: path.stat().st_mtime)
        for path in latest[-_SHOWN_PROCESSES:]:
            lines = path.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
            report.sections.append((f"error output of {path.stem}", "\n".join(lines)))
    return report


@pytest.fixture(scope="session")
def ray_folder() -> Iterator[str]:
    """Where Ray keeps everything of these tests; after them no process has anything to do with it."""
    with tempfile.TemporaryDirectory(prefix="alpa-ray-", ignore_cleanup_errors=True) as folder:
        (Path(folder) / "ray").mkdir()
        variables = {
            "RAY_TMPDIR": folder,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            # Else Ray ends hosts when other programs have filled the machine's memory.
            "RAY_memory_monitor_refresh_ms": "0",
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("RAY_ADDRESS", raising=False)
            for name, value in variables.items():
                patch.setenv(name, value)
            yield folder
        wait_until(lambda: not processes_of(folder))


@pytest.fixture(scope="session")
def cluster(ray_folder: str) -> Iterator[Any]:
    """Two nodes, and this process connected to them."""
    import ray
    from ray.cluster_utils import Cluster

    from alpa_on_jax.ray_mesh.cluster.hosts import CPU_DEVICE

    node = {
        "num_cpus": 4,
        "num_gpus": 2,
        "resources": {CPU_DEVICE: NUM_DEVICES},
        "object_store_memory": 100 * 2**20,
        "include_dashboard": False,
    }
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        for _ in range(NUM_HOSTS - 1):
            cluster.add_node(**node)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def mesh(cluster: Any) -> Iterator[Any]:
    """Alpa on that cluster: its global mesh, of all hosts and devices."""
    alpa.init(cluster="ray")
    yield get_global_physical_mesh(create_if_not_exist=True)
    alpa.shutdown()


@pytest.fixture
def initialised(cluster: Any) -> Iterator[None]:
    """Alpa on the cluster, for a test that breaks what it has; afterwards all that it held is free."""
    import ray

    from alpa_on_jax.ray_mesh.cluster.hosts import CPU_DEVICE

    alpa.init(cluster="ray")
    yield
    alpa.shutdown()
    wait_until(lambda: ray.available_resources().get(CPU_DEVICE, 0) == NUM_HOSTS * NUM_DEVICES)
