"""Training steps, plans and profiles on a mesh of one GPU, in this process and in one that Ray manages."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import alpa
import jax
import numpy as np
import pytest
from alpa.device_mesh import LocalPhysicalDeviceMesh

from alpa_cfp import CFPOption, CFPShardParallel
from alpa_cfp.database import Profile, ProfileDatabase, ProfileKey
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from integration.serial import assert_equal_up_to_rounding, expected_steps

METHODS = {"ilp": alpa.ShardParallel, "zero3": alpa.Zero3Parallel, "cfp": CFPShardParallel}
# By default a GPU multiplies float32 with fewer bits; then nothing could be compared.
pytestmark = pytest.mark.usefixtures("all_bits")

ON_RAY = """
import json, os, sys
import alpa, jax, numpy as np
from alpa.device_mesh import get_global_physical_mesh
from alpa_cfp import CFPOption, CFPShardParallel
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from alpa_on_jax.ray_mesh.failures.calling import call_on_hosts

alpa.init(cluster="ray", cluster_address="local", num_devices_per_node=1)
built = build("mlp")
option = CFPOption(database=sys.argv[1], samples=2, refine=1, progress=False)
losses = {}
for name, method in {"ilp": alpa.ShardParallel(), "cfp": CFPShardParallel(auto_sharding_option=option)}.items():
    step = alpa.parallelize(train_step(built, alpa.value_and_grad), method=method)
    state, losses[name] = jax.tree.map(np.array, built.state), []
    for _ in range(2):
        state, metrics, _ = step(state, built.batch)
        losses[name].append(float(np.asarray(metrics["loss"])))
kinds = call_on_hosts(get_global_physical_mesh(), lambda backend: backend.devices()[0].device_kind)
alpa.shutdown()
print(json.dumps({"losses": losses, "kinds": kinds, "here": jax.local_devices(backend="cpu")[0].platform}))
"""


@pytest.fixture
def all_bits() -> Any:
    with jax.default_matmul_precision("highest"):
        yield


def measured_in(database: Path) -> dict[ProfileKey, Profile]:
    with ProfileDatabase.open(database, readonly=True) as profiles:
        return {key: profile for key, profile in profiles.items() if profile.status == "measured"}


@pytest.mark.parametrize("method", sorted(METHODS))
def test_two_steps_on_a_mesh_of_one_gpu_equal_the_serial_steps(method: str, tmp_path: Path) -> None:
    option = CFPOption(database=tmp_path / "profiles.sqlite", samples=2, refine=1, progress=False)
    options = {"auto_sharding_option": option} if method == "cfp" else {}
    mesh = LocalPhysicalDeviceMesh(jax.local_devices()[:1])
    built = build("mlp")
    step = alpa.parallelize(train_step(built, alpa.value_and_grad), method=METHODS[method](devices=mesh, **options))
    state = jax.tree.map(np.array, built.state)
    for expected in expected_steps("mlp", None, 2):
        state, metrics, grads = step(state, built.batch)
        actual = jax.tree.map(np.asarray, (state, metrics, grads))
        assert_equal_up_to_rounding(actual, (expected.state, expected.metrics, expected.grads))
    if method == "cfp":
        kinds = {key.device_kind for key in measured_in(tmp_path / "profiles.sqlite")}
        assert kinds == {jax.local_devices()[0].device_kind}


def test_a_host_of_a_ray_cluster_with_a_gpu_trains_and_measures_on_it(tmp_path: Path) -> None:
    database = tmp_path / "profiles.sqlite"
    environment = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", "RAY_ADDRESS")}
    command = [sys.executable, "-c", ON_RAY, str(database)]
    # A short path: Ray's sockets lie in it.
    with tempfile.TemporaryDirectory(prefix="alpa-ray-", ignore_cleanup_errors=True) as folder:
        environment |= {"RAY_TMPDIR": folder, "JAX_DEFAULT_MATMUL_PRECISION": "highest"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    kind = jax.local_devices()[0].device_kind
    assert told["kinds"] == [kind]
    assert {key.device_kind for key in measured_in(database)} == {kind}
    expected = [step.metrics["loss"] for step in expected_steps("mlp", None, 2)]
    for losses in told["losses"].values():
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
