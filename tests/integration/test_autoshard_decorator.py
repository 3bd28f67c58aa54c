"""`@autoshard(mesh)`: a function that is planned at its first call, and for other arguments, equals the serial run."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh

from alpa_cfp import PlanOptions, autoshard
from alpa_cfp.errors import AutoshardError, OptionError, PlanError
from alpa_cfp.jit import at_first_call
from integration.serial import assert_equal_up_to_rounding, run_serially

pytestmark = pytest.mark.slow

Weights = dict[str, jax.Array]


def mesh() -> Mesh:
    return jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])


def train_step(weights: Weights, x: jax.Array) -> tuple[Weights, jax.Array]:
    """A step of two layers."""

    def loss(weights: Weights) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ weights["a"]) @ weights["b"]) ** 2)

    value, grads = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, weights, grads), value


def arguments(batch: int = 64) -> tuple[Weights, jax.Array]:
    a, b = jax.random.normal(jax.random.key(0), (2, 32, 64)) / 8
    return {"a": a, "b": b.T}, jax.random.normal(jax.random.key(1), (batch, 32))


def numpy(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)


@pytest.fixture
def plans_made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The options of each plan that is made."""
    made: list[Any] = []
    plan_function = at_first_call.plan_function

    def counted(*args: Any) -> Any:
        made.append(args[-1])
        return plan_function(*args)

    monkeypatch.setattr(at_first_call, "plan_function", counted)
    return made


def test_it_is_planned_once_for_each_shape_and_equals_the_serial_run(plans_made: list[Any]) -> None:
    step = autoshard(mesh(), costs="estimate")(train_step)
    for batch in (64, 64, 32, 64):
        assert_equal_up_to_rounding(numpy(step(*arguments(batch))), run_serially(train_step, *arguments(batch)))
    assert len(plans_made) == 2
    assert step.plan.signature is not None
    assert step.plan.signature.inputs[-1].shape == (32, 32)
    assert step.plan_for(*arguments(64)).signature != step.plan.signature
    assert len(plans_made) == 2


def test_it_is_a_decorator_with_the_name_and_the_donation_of_the_function() -> None:
    @autoshard(mesh(), donate_argnums=0, option=PlanOptions(costs="estimate"))
    def step(weights: Weights, x: jax.Array) -> tuple[Weights, jax.Array]:
        """The docstring."""
        return train_step(weights, x)

    assert (step.__name__, step.__doc__) == ("step", "The docstring.")
    weights, x = arguments()
    expected = numpy(weights)
    for _ in range(3):
        given = weights
        expected, expected_loss = run_serially(train_step, expected, x)
        weights, loss = step(weights, x)
        # Not compared here: by JAX 0.11 `jax.jit`, too, does not give up a replicated array that numpy has read.
        assert given["a"].is_deleted()
        assert_equal_up_to_rounding(np.asarray(loss), expected_loss)
    assert_equal_up_to_rounding(numpy(weights), expected)


def test_an_array_that_is_given_and_donated_twice_is_copied() -> None:
    step, x = autoshard(mesh(), donate_argnums=0, costs="estimate")(train_step), arguments()[1]
    both = {name: jnp.ones((32, 32)) for name in ("a", "b")}
    expected = run_serially(train_step, both, x)
    twice = jnp.ones((32, 32))
    assert_equal_up_to_rounding(numpy(step({"a": twice, "b": twice}, x)), expected)


def test_keyword_arguments_of_the_function_may_be_called_as_those_of_autoshard() -> None:
    def scaled(x: jax.Array, *, option: float) -> jax.Array:
        return option * x @ x.T

    x = arguments()[1]
    result = autoshard(mesh(), costs="estimate")(scaled)(x, option=2.0)
    assert_equal_up_to_rounding(np.asarray(result), run_serially(lambda x: 2 * x @ x.T, x))


def test_it_is_planned_ahead_and_lowered_from_shapes(plans_made: list[Any]) -> None:
    step = autoshard(mesh(), costs="estimate")(train_step)
    with pytest.raises(PlanError, match="the function is not planned yet"):
        _ = step.plan
    shapes = jax.eval_shape(arguments)
    plan = step.plan_for(*shapes)
    assert step.plan is plan
    (weights, x), _ = step.planned_for(*shapes).compile(*shapes).input_shardings
    compiled = step.lower(*shapes).compile()
    placed = jax.device_put(arguments(), (weights, x))
    assert_equal_up_to_rounding(numpy(compiled(*placed)), run_serially(train_step, *arguments()))
    step(*arguments())
    assert len(plans_made) == 1


def test_a_mesh_without_devices_is_enough_to_plan() -> None:
    step = autoshard(AbstractMesh((4,), ("data",)), costs="estimate")(train_step)
    plan = step.plan_for(*arguments())
    assert_equal_up_to_rounding(
        numpy(plan.jit(train_step, mesh())(*arguments())), run_serially(train_step, *arguments())
    )
    with pytest.raises(PlanError, match="a mesh without devices"):
        step(*arguments())


def test_threads_that_call_it_at_once_plan_once(plans_made: list[Any]) -> None:
    step, barrier = autoshard(mesh(), costs="estimate")(train_step), threading.Barrier(4)

    def call(_: int) -> Any:
        barrier.wait()
        return numpy(step(*arguments()))

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(call, range(4)))
    assert len(plans_made) == 1
    for result in results:
        assert_equal_up_to_rounding(result, run_serially(train_step, *arguments()))


def test_called_first_inside_jit_it_is_planned_from_shapes_and_equals_the_serial_run() -> None:
    step = autoshard(mesh(), costs="estimate")(train_step)
    result = jax.jit(lambda weights, x: step(weights, (2 * x) / 2))(*arguments())
    assert_equal_up_to_rounding(numpy(result), run_serially(train_step, *arguments()))


def test_numbers_promote_dtypes_as_they_do_in_jax_jit(plans_made: list[Any]) -> None:
    """A Python number takes the dtype of what it meets, an array of one number does not."""

    def scaled(x: jax.Array, rate: Any) -> jax.Array:
        return (x @ x.T) * rate

    # Small whole numbers, whose products bfloat16 has exactly: XLA may leave out conversions to it and back.
    step, x = autoshard(mesh(), costs="estimate")(scaled), jnp.sign(arguments()[1]).astype(jnp.bfloat16)
    for rate in (0.5, np.float32(0.5), jnp.float32(0.5), 0.5):
        result, expected = step(x, rate), jax.jit(scaled)(x, rate)
        assert result.dtype == expected.dtype
        assert_equal_up_to_rounding(np.asarray(result, np.float32), np.asarray(expected, np.float32))
    assert [options.plan is None for options in plans_made] == [True, False, True]


def test_a_plan_serves_arguments_whose_dtypes_are_only_weak_in_another_way(plans_made: list[Any]) -> None:
    """As the count of a new train state, a Python number, and that of one which was restored, an array."""

    def counted(x: jax.Array, rate: Any, count: Any) -> Any:
        return jnp.tanh(x @ x.T) * rate, count + 1

    step, x = autoshard(mesh(), costs="estimate")(counted), arguments()[1]
    for rate, count, weak in ((0.5, 0, True), (np.float32(0.5), np.int32(0), False)):
        result, next_count = step(x, rate, count)
        assert_equal_up_to_rounding(np.asarray(result), run_serially(lambda x: counted(x, 0.5, 0)[0], x))
        assert (int(next_count), next_count.weak_type) == (1, weak)
    assert [options.plan is None for options in plans_made] == [True, False]


def test_what_is_wrong_is_refused_with_words(plans_made: list[Any]) -> None:
    with pytest.raises(AutoshardError, match="is a decorator and takes keyword arguments only"):
        autoshard(mesh(), train_step, *arguments())  # pyright: ignore[reportCallIssue, reportArgumentType]
    with pytest.raises(AutoshardError, match=r"wants a jax\.sharding\.Mesh"):
        autoshard(train_step)  # pyright: ignore[reportCallIssue, reportArgumentType]
    with pytest.raises(OptionError, match="costs"):
        autoshard(mesh(), costs="guess")
    with pytest.raises(TypeError, match="cost"):
        autoshard(mesh(), cost="estimate")
    step: Callable[..., Any] = autoshard(mesh(), costs="estimate")(train_step)
    with pytest.raises(AutoshardError, match=r"args\[1\] is a str"):
        step(arguments()[0], "x")
    assert not plans_made
