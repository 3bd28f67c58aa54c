"""Training steps on two hosts against the serial run: alpa's methods, with and without micro-batches."""

from typing import Any

import alpa
import jax
import numpy as np
import pytest

from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from integration.serial import assert_equal_up_to_rounding, expected_steps

METHODS = {
    "ilp": alpa.ShardParallel,
    "data_parallel": alpa.DataParallel,
    "zero2": alpa.Zero2Parallel,
    "zero3": alpa.Zero3Parallel,
}
CASES = [
    ("mlp", "ilp", None),
    ("mlp", "ilp", 2),
    ("mlp", "data_parallel", None),
    ("mlp", "zero2", 2),
    ("mlp", "zero3", None),
    ("gpt", "ilp", None),
    ("gpt", "zero3", 2),
]


@pytest.mark.parametrize(("model", "method", "num_micro_batches"), CASES)
def test_two_steps_on_two_hosts_equal_the_serial_steps(
    mesh: Any, model: str, method: str, num_micro_batches: int | None
) -> None:
    built = build(model)
    step = alpa.parallelize(
        train_step(built, alpa.value_and_grad), method=METHODS[method](num_micro_batches=num_micro_batches)
    )
    # Copies: a step gives up its state, and the model's is every test's.
    state = jax.tree.map(np.array, built.state)
    for expected in expected_steps(model, num_micro_batches, 2):
        state, metrics, grads = step(state, built.batch)
        actual = jax.tree.map(np.asarray, (state, metrics, grads))
        assert_equal_up_to_rounding(actual, (expected.state, expected.metrics, expected.grads))
    assert step.get_last_executable().physical_mesh is mesh
