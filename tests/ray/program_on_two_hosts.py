"""A program on a Ray cluster as a user writes one, and what it found there; run in a process of its own by a test.

Takes the cluster's address and a folder. With a folder it trains the MLP by each method for two steps and leaves there
`steps.npz`, the values after each step in the order of the tree's leaves, and prints where its hosts are as JSON;
without one it only tries to attach, and prints the class of the error. Invariant: nothing is compared here, so that
the serial run is that of another process.
"""

import json
import os
import sys
from pathlib import Path

import alpa
import jax
import numpy as np
from alpa.device_mesh import get_global_cluster, get_global_physical_mesh
from alpa.parallel_method import ParallelMethod

from alpa_cfp import CFPOption, CFPShardParallel
from alpa_cfp.database import ProfileDatabase
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from alpa_on_jax import errors
from alpa_on_jax.ray_mesh.failures.calling import call_on_hosts

MODEL, NUM_STEPS = "mlp", 2


def main(address: str, folder: str | None = None) -> None:
    """The command line."""
    try:
        alpa.init(cluster="ray", cluster_address=address)
    except errors.ClusterError as error:
        print(json.dumps({"error": type(error).__name__, "says": str(error)}))
        return
    if folder is not None:
        run(Path(folder))
    alpa.shutdown()


def run(folder: Path) -> None:
    """Train by each method, and write down what came out."""
    database = folder / "profiles.sqlite"
    option = CFPOption(database=database, samples=1, refine=0, progress=False)
    methods = {
        "ilp": alpa.ShardParallel(),
        "zero3": alpa.Zero3Parallel(num_micro_batches=2),
        "cfp": CFPShardParallel(auto_sharding_option=option),
    }
    np.savez(folder / "steps.npz", **{f"{name}-{i}": leaf for name in methods for i, leaf in steps_by(methods[name])})
    with ProfileDatabase.open(database) as profiles:
        profiled = sorted({key.hosts for key, profile in profiles.items() if profile.status == "measured"})
    mesh = get_global_physical_mesh()
    found = {
        "addresses": [host["AlpaHostAddress"] for host in get_global_cluster().host_info],
        "namespaces": call_on_hosts(mesh, lambda _: os.readlink("/proc/self/ns/net")),
        "shape": [mesh.num_hosts, mesh.num_devices_per_host],
        "profiled": profiled,
    }
    print(json.dumps(found))


def steps_by(method: ParallelMethod) -> list[tuple[int, np.ndarray]]:
    """The leaves of state, metrics and gradients after each step, numbered."""
    built = build(MODEL)
    step = alpa.parallelize(train_step(built, alpa.value_and_grad), method=method)
    state, values = jax.tree.map(np.array, built.state), []
    for _ in range(NUM_STEPS):
        state, metrics, grads = step(state, built.batch)
        values += [np.asarray(leaf) for leaf in jax.tree.leaves((state, metrics, grads))]
    return list(enumerate(values))


if __name__ == "__main__":
    main(*sys.argv[1:])
