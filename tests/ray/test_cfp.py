"""`CFPShardParallel` on a mesh of two hosts: it measures there, in processes of its own, and keeps what it measured."""

from pathlib import Path
from typing import Any

import alpa
import jax
import numpy as np

from alpa_cfp import CFPOption, CFPShardParallel
from alpa_cfp.database import ProfileDatabase
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from integration.serial import assert_equal_up_to_rounding, expected_steps

MODEL = "mlp"


def test_a_plan_that_is_measured_on_two_hosts_gives_the_serial_steps(mesh: Any, tmp_path: Path) -> None:
    database = tmp_path / "profiles.sqlite"
    built = build(MODEL)
    state = jax.tree.map(np.array, built.state)
    option = CFPOption(database=database, samples=2, refine=2, progress=False)
    step = alpa.parallelize(
        train_step(built, alpa.value_and_grad), method=CFPShardParallel(auto_sharding_option=option)
    )
    for expected in expected_steps(MODEL, None, 2):
        state, metrics, grads = step(state, built.batch)
        actual = jax.tree.map(np.asarray, (state, metrics, grads))
        assert_equal_up_to_rounding(actual, (expected.state, expected.metrics, expected.grads))
    with ProfileDatabase.open(database) as profiles:
        measured = [(key, profile) for key, profile in profiles.items() if profile.status == "measured"]
    assert {key.hosts for key, _ in measured} == {"4+4"}
    assert any(profile.collectives for _, profile in measured)
