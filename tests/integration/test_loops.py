"""Loops in plans: one that is unrolled gives a program that grows as the loop does; one with nothing to plan stays, and
so does one over large time steps.

The example is a recurrence: a cart with a pole that a small policy balances. XLA on CPUs would fuse each step of it
into all later ones.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh

from alpa_cfp import CFPOption, Plan, PlanOptions, autoshard
from alpa_cfp.jit import loops_as_written, recurrences
from alpa_cfp.jit.planned_function import PlannedFunction
from integration.serial import assert_equal_up_to_rounding, run_serially

pytestmark = pytest.mark.slow

OPTION = CFPOption(costs="estimate")
POLICY = jnp.full((4, 1), 0.1)
STATES = jnp.sin(jnp.arange(256.0)).reshape(64, 4) / 10


def mesh(*shape: int) -> Mesh:
    return Mesh(np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape), ("data", "model")[: len(shape)])


def moved(states: jax.Array, force: jax.Array) -> jax.Array:
    """The states (position, velocity, angle, angular velocity) after 0.02 s."""
    position, velocity, angle, spin = (states[:, column] for column in range(4))
    push = (10 * force + 0.05 * spin**2 * jnp.sin(angle)) / 1.1
    fall = (9.8 * jnp.sin(angle) - jnp.cos(angle) * push) / (0.5 * (4 / 3 - 0.1 * jnp.cos(angle) ** 2 / 1.1))
    pull = push - 0.05 * fall * jnp.cos(angle) / 1.1
    return jnp.stack(
        [position + 0.02 * velocity, velocity + 0.02 * pull, angle + 0.02 * spin, spin + 0.02 * fall], axis=1
    )


def cart_pole(steps: int) -> Callable[..., Any]:
    """A gradient step of the policy through so many steps of the cart."""

    def loss(policy: jax.Array, states: jax.Array) -> jax.Array:
        def body(states: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            states = moved(states, jnp.tanh(states @ policy)[:, 0])
            return states, states[:, 2] ** 2

        return jnp.mean(lax.scan(body, states, None, length=steps)[1])

    def step(policy: jax.Array, states: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(policy, states)
        return policy - 0.1 * gradient, value

    return step


def planned(fn: Callable[..., Any], on: Mesh, *args: Any) -> tuple[Plan, PlannedFunction]:
    """The plan of `fn`, and the function as it is planned, held against the serial run."""
    plan = autoshard(fn, on, *args, donate_argnums=0, option=OPTION)
    function = plan.jit(fn)
    results = function(*jax.tree.map(jnp.copy, args))
    assert_equal_up_to_rounding(jax.tree.map(np.asarray, results), run_serially(fn, *args))
    return plan, function


def instructions(function: PlannedFunction) -> int:
    return function.as_text().count(" = ")


def test_an_unrolled_recurrence_and_its_gradient_give_a_program_that_grows_as_the_number_of_steps_does() -> None:
    few, twice, again = (instructions(planned(cart_pole(steps), mesh(4), POLICY, STATES)[1]) for steps in (8, 16, 32))
    # What is quadratic adds four times as much the second time.
    assert again - twice < 2.2 * (twice - few)


@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_a_recurrence_of_tiny_steps_is_planned_step_by_step(shape: tuple[int, ...]) -> None:
    plan, function = planned(cart_pole(5), mesh(*shape), POLICY, STATES)
    assert len(plan.strategies) == 5
    assert " while(" not in function.as_text()


@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_a_recurrence_of_large_steps_stays_a_loop_with_its_gradient(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurrences, "LEAST_PER_STEP", 0)
    plan, function = planned(cart_pole(5), mesh(*shape), POLICY, STATES)
    assert len(plan.strategies) == 1
    assert function.as_text().count(" while(") == 2
    assert "2 loops over time steps stay loops: they are split as a whole" in str(plan.explain())


def test_a_loop_with_nothing_to_plan_stays_a_loop_and_the_plan_says_so() -> None:
    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        def body(state: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            state = 0.9 * state + jnp.tanh(state + row)
            return state, state

        _, states = lax.scan(body, jnp.zeros_like(x[0]), x @ weights)
        return jnp.mean((states @ weights) ** 2)

    def step(weights: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(weights, x)
        return weights - 0.1 * gradient, value

    weights, x = jnp.sin(jnp.arange(256.0)).reshape(16, 16) / 4, jnp.cos(jnp.arange(1024.0)).reshape(8, 8, 16)
    plan, function = planned(step, mesh(4), weights, x)
    assert function.as_text().count(" while(") == 2
    assert "2 loops stay loops: there is nothing in them to plan" in str(plan.explain())


def test_weights_that_a_loop_updates_step_by_step_equal_the_serial_ones() -> None:
    def fit(weights: jax.Array, batches: jax.Array) -> tuple[jax.Array, jax.Array]:
        def body(weights: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
            value, gradient = jax.value_and_grad(lambda weights: jnp.mean((batch @ weights - 1) ** 2))(weights)
            return weights - 0.1 * gradient, value

        return lax.scan(body, weights, batches)

    batches = jnp.cos(jnp.arange(2048.0)).reshape(4, 32, 16)
    planned(fit, mesh(2, 2), jnp.sin(jnp.arange(256.0)).reshape(16, 16) / 4, batches)


def trained(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Weights after some steps on drawn samples: a whole training of a key, as in reinforcement learning."""
    drawn = jax.random.normal(key, (6, 16, 8))

    def body(weights: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, gradient = jax.value_and_grad(lambda weights: jnp.mean((jnp.tanh(x @ weights) - x) ** 2))(weights)
        return weights - 0.1 * gradient, value

    return lax.scan(body, jnp.eye(8) / 2, drawn)


def test_a_program_that_is_planned_with_its_loops_as_they_are_written_equals_the_serial_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops_as_written, "_gains_little", lambda plan: True)
    monkeypatch.setattr(loops_as_written, "is_faster", lambda plan, than: True)
    option = PlanOptions(database=tmp_path / "profiles.sqlite", samples=2, refine=1, progress=False)
    key = jax.random.key(3)
    plan = Plan.from_json(autoshard(trained, mesh(2), key, option=option).to_json())
    assert plan.signature is not None
    assert plan.signature.keeps_loops
    assert "no loop is unrolled" in plan.explain()
    function = plan.jit(trained)
    assert_equal_up_to_rounding(jax.tree.map(np.asarray, function(key)), run_serially(trained, key))
    products = function.as_text().count(" dot(")
    assert products == 2  # of one step and its gradient, however many steps there are
    replayed = autoshard(trained, mesh(2), key, option=replace(option, costs="replay"))
    assert replayed.to_json() == replace(plan, costs="replay").to_json()
    monkeypatch.undo()
    plan.save(tmp_path / "plan.json")
    for given in (plan, tmp_path / "plan.json"):
        again = autoshard(trained, mesh(2), key, option=PlanOptions(costs="estimate", plan=given))
        assert again.program == plan.program
        assert again.in_shardings == plan.in_shardings
