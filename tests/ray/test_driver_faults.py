"""What becomes of planning on a cluster when the driver is killed, or the disk of the profile database is full."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import alpa
import jax
import numpy as np
import pytest
import ray

from alpa_cfp import CFPOption, CFPShardParallel
from alpa_cfp.database import Profile, ProfileDatabase
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from alpa_on_jax.ray_mesh.cluster.hosts import CPU_DEVICE
from integration.processes import processes_of, wait_until
from integration.serial import assert_equal_up_to_rounding, expected_steps

DRIVER = """
import sys
import alpa
from alpa_cfp import CFPOption, CFPShardParallel
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
alpa.init(cluster="ray", cluster_address=sys.argv[1])
built = build("mlp")
option = CFPOption(database=sys.argv[2], samples=2, refine=0, progress=False)
step = alpa.parallelize(train_step(built, alpa.value_and_grad), method=CFPShardParallel(auto_sharding_option=option))
step.get_executable(built.state, built.batch)
alpa.shutdown()
"""
OF_A_MESH = ("RayHost", "Supervisor", "alpa_cfp.profiling")


def profiles_in(database: Path) -> dict[Any, Profile]:
    with ProfileDatabase.open(database) as profiles:
        return {key: profile for key, profile in profiles.items() if profile.status == "measured"}


def has_profiles(database: Path, number: int) -> bool:
    """Whether so many are written; by SQLite itself, as somebody would who looks from outside."""
    try:
        with sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=1) as connection:
            return connection.execute("SELECT count(*) FROM sessions").fetchone()[0] >= number
    except sqlite3.Error:
        return False


def of_a_mesh(folder: str) -> dict[int, str]:
    return {
        pid: command
        for pid, command in processes_of(folder).items()
        if any(name in command for name in OF_A_MESH) and command.startswith(("ray::", sys.executable))
    }


def test_a_driver_that_is_killed_leaves_nothing_and_the_next_one_goes_on_where_it_was(
    cluster: Any, ray_folder: str, tmp_path: Path
) -> None:
    wait_until(lambda: ray.available_resources().get(CPU_DEVICE, 0) == 8)
    database = tmp_path / "profiles.sqlite"
    command = [sys.executable, "-c", DRIVER, cluster.address, str(database)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
        wait_until(lambda: has_profiles(database, 3), 60)
        assert of_a_mesh(ray_folder)
        os.kill(driver.pid, signal.SIGKILL)
    wait_until(lambda: not of_a_mesh(ray_folder))
    wait_until(lambda: ray.available_resources().get(CPU_DEVICE, 0) == 8)
    before = profiles_in(database)
    assert len(before) >= 3
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    after = profiles_in(database)
    assert len(after) > len(before)
    assert {key: after[key].samples_s for key in before} == {key: before[key].samples_s for key in before}
    wait_until(lambda: not of_a_mesh(ray_folder))


def test_a_full_disk_is_said_and_the_plan_is_made_all_the_same(
    cluster: Any, ray_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    database = tmp_path / "profiles.sqlite"
    open_database = ProfileDatabase.open

    def open_on_full_disk(*args: Any, **options: Any) -> ProfileDatabase:
        opened = open_database(*args, **options)
        # The file can grow no further, which SQLite answers as it answers a full disk.
        opened._connection.execute("PRAGMA max_page_count = 1")
        return opened

    built = build("mlp")
    option = CFPOption(database=database, samples=2, refine=0, progress=False)
    method = CFPShardParallel(auto_sharding_option=option)
    step = alpa.parallelize(train_step(built, alpa.value_and_grad), method=method)
    expected = expected_steps("mlp", None, 1)[0]
    alpa.init(cluster="ray")
    try:
        with monkeypatch.context() as patch:
            patch.setattr(ProfileDatabase, "open", open_on_full_disk)
            values = step(jax.tree.map(np.array, built.state), built.batch)
        assert_equal_up_to_rounding(
            jax.tree.map(np.asarray, values), (expected.state, expected.metrics, expected.grads)
        )
    finally:
        alpa.shutdown()
    assert any("could not be written" in message and "disk is full" in message for message in caplog.messages)
    caplog.clear()
    profiles_in(database)
    assert not caplog.messages, "what the file had before is still there, and sound"
    wait_until(lambda: not of_a_mesh(ray_folder))
