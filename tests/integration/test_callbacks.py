"""Programs that look at values from Python, or check them, are planned and give what the serial run gives."""

import logging
from collections.abc import Callable
from typing import Any

import alpa
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa import PipeshardParallel, ShardParallel
from alpa.parallel_method import ParallelMethod
from jax.sharding import Mesh

from alpa_cfp import autoshard
from alpa_cfp_bench.workloads.meshes import logical_mesh
from integration.pipelines import pipeline
from integration.planned import ESTIMATE, method
from integration.serial import assert_equal_up_to_rounding, run_serially

_RNG = np.random.default_rng(0)
WEIGHTS = [jnp.asarray(_RNG.normal(size=(16, 16)) * 0.1, jnp.float32) for _ in range(2)]
BATCH = jnp.asarray(_RNG.normal(size=(16, 16)), jnp.float32)
LIMIT = 100.0
METHODS: dict[str, Callable[[], ParallelMethod]] = {
    "ilp": lambda: ShardParallel(logical_mesh("2x4")),
    "cfp": lambda: method("2x4", ESTIMATE),
    "micro-batches": lambda: method("2x4", ESTIMATE, 2),
}


def step_with(value_and_grad: Any, looks_on: bool = True) -> Callable[[Any, Any], Any]:
    """A training step that prints, and checks its activations; without both if it does not look on."""

    def step(weights: Any, batch: Any) -> Any:
        def loss(weights: Any) -> Any:
            hidden = jnp.tanh(batch @ weights[0])
            if looks_on:
                jax.debug.print("{}", hidden.sum())
                hidden = eqx.error_if(hidden, jnp.any(jnp.abs(batch) > LIMIT), "inputs are too large")
            return jnp.mean((hidden @ weights[1] - batch) ** 2)

        value, grads = value_and_grad(loss)(weights)
        return [weight - 0.1 * grad for weight, grad in zip(weights, grads, strict=True)], value

    return step


def parallel(chosen: ParallelMethod) -> Any:
    return alpa.parallelize(step_with(alpa.value_and_grad), method=chosen, batch_argnums=(1,), donate_argnums=())


@pytest.mark.parametrize("name", METHODS)
def test_a_step_that_prints_and_checks_is_planned_and_equals_the_serial_one(name: str) -> None:
    actual = parallel(METHODS[name]())(WEIGHTS, BATCH)
    assert_equal_up_to_rounding(actual, run_serially(step_with(jax.value_and_grad), WEIGHTS, BATCH))


@pytest.mark.usefixtures("local_pipelines")
def test_a_pipeline_that_prints_and_checks_equals_the_serial_run() -> None:
    chosen: PipeshardParallel = pipeline(2, num_micro_batches=2)
    actual = parallel(chosen)(WEIGHTS, BATCH)
    assert_equal_up_to_rounding(actual, run_serially(step_with(jax.value_and_grad), WEIGHTS, BATCH))


@pytest.mark.parametrize("name", METHODS)
def test_what_fails_a_check_is_nan_with_every_method(name: str) -> None:
    weights, loss = parallel(METHODS[name]())(WEIGHTS, BATCH.at[3, 3].set(2 * LIMIT))
    assert np.isnan(loss)
    assert np.isnan(weights[1]).all()


def test_autoshard_plans_it_says_what_is_left_out_and_what_fails_is_nan(caplog: pytest.LogCaptureFixture) -> None:
    mesh, step = Mesh(np.array(jax.devices()[:4]), ("data",)), step_with(jax.value_and_grad)
    with caplog.at_level(logging.WARNING, logger="alpa_cfp"):
        plan = autoshard(step, mesh, WEIGHTS, BATCH, option=ESTIMATE)
    assert plan.account is not None
    left_out, checks = plan.account.caveats[:2]
    assert left_out.text.startswith("calls back into Python whose results nothing uses are left out of the program")
    assert "test_callbacks.py" in left_out.text
    assert checks.text.startswith("checks that call back into Python raise no error")
    assert left_out.text in caplog.text
    run = plan.jit(step, mesh)
    assert_equal_up_to_rounding(run(WEIGHTS, BATCH), run_serially(step, WEIGHTS, BATCH))
    assert np.isnan(run(WEIGHTS, BATCH.at[0, 0].set(2 * LIMIT))[1])


def test_a_check_costs_no_activation_its_split() -> None:
    """It is a selection, not a condition of which each device would compute the whole."""
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    checked, plain = (
        autoshard(step_with(jax.value_and_grad, looks_on), mesh, WEIGHTS, BATCH, option=ESTIMATE)
        for looks_on in (True, False)
    )
    assert checked.signature is not None
    assert plain.signature is not None
    assert [placed.dims for placed in checked.signature.inputs] == [placed.dims for placed in plain.signature.inputs]
    text = checked.jit(step_with(jax.value_and_grad), mesh).compile(WEIGHTS, BATCH).as_text()
    assert " all-gather(" not in text
