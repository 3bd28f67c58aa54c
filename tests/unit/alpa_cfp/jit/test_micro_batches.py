"""A function in micro-batches gives what it gives without, or is refused."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from alpa_cfp import PlanOptions, autoshard, in_micro_batches
from alpa_cfp.errors import MicroBatchError, OptionError
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.sizes import SIZES, TINY

SAMPLES, TIME, WIDTH = 8, 4, 6
CHANNELS_LAST = ("NWC", "WIO", "NWC")
Function = Callable[..., Any]

# What is computed from (weights [WIDTH, WIDTH], samples [SAMPLES, TIME, WIDTH], labels [SAMPLES, TIME]), by itself.
SEPARATE: dict[str, Function] = {
    "products": lambda w, x, y: x @ w,
    "products of a sample with itself": lambda w, x, y: jnp.einsum("btd,bsd->bts", x, x @ w),
    "products with the samples on the right": lambda w, x, y: jnp.einsum("dc,btc->dbt", w, x),
    "rows of all samples": lambda w, x, y: x.reshape((-1, WIDTH)) @ w,
    "rows and back": lambda w, x, y: (x.reshape((-1, WIDTH)) @ w).reshape(x.shape).transpose((1, 0, 2)),
    "other orders": lambda w, x, y: x.transpose((2, 0, 1))[::-1] + 1,
    "lookups": lambda w, x, y: w[y],
    "a place of each row": lambda w, x, y: jnp.take_along_axis(x, y[..., None], axis=-1),
    "labels": lambda w, x, y: jax.nn.log_softmax(x @ w) * jax.nn.one_hot(y, WIDTH),
    "convolutions": lambda w, x, y: lax.conv_general_dilated(x, w[None], (1,), "SAME", dimension_numbers=CHANNELS_LAST),
    "parts": lambda w, x, y: jnp.concatenate(jnp.split(x, 2, axis=-1)[::-1], axis=-1)[:, 1:],
    "one position": lambda w, x, y: x[:, 2] @ w,
    "sorts and sums along time": lambda w, x, y: jnp.cumsum(jnp.sort(x, axis=1), axis=1),
    "the largest": lambda w, x, y: jnp.argmax(x @ w, axis=-1),
    "norms of rows": lambda w, x, y: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-3),
    "positions": lambda w, x, y: jnp.where(jnp.tril(jnp.ones((TIME, TIME), bool)), x @ x.transpose((0, 2, 1)), 0),
    "a scan over time": lambda w, x, y: lax.scan(lambda h, v: (jnp.tanh(h @ w + v),) * 2, x[:, 0], x.swapaxes(0, 1))[1],
    "numbers of the whole": lambda w, x, y: x * len(x) + x.size,
    "no samples": lambda w, x, y: w @ w,
}  # fmt: skip
# What is not.
MIXED: dict[str, tuple[Function, str]] = {
    "norms over the batch": (lambda w, x, y: (x - x.mean(0)) @ w, "sub needs a sum over all samples"),
    "products of samples with each other": (lambda w, x, y: x[:, 0] @ x[:, 0].T, "has no dim of samples alone"),
    "an order of samples": (lambda w, x, y: jnp.sort(x, axis=0), "`sort` cannot be divided"),
    "samples in reverse": (lambda w, x, y: x[::-1], "`rev` cannot be divided"),
    "the last samples first": (lambda w, x, y: jnp.roll(x, 1, axis=0), "no dim of samples alone"),
    "sums up to a sample": (lambda w, x, y: jnp.cumsum(x, axis=0), "`cumsum` cannot be divided"),
    "numbers of samples": (lambda w, x, y: x + jnp.arange(len(x))[:, None, None], "it numbers the samples"),
    "the largest of all": (lambda w, x, y: x.max(0), "`reduce_max` brings samples together"),
    "random numbers": (lambda w, x, y: x * jax.random.bernoulli(jax.random.key(0), 0.5, x.shape), "cannot be divided"),
    "rows with time outside": (lambda w, x, y: x.swapaxes(0, 1).reshape((-1, WIDTH)), "`reshape` cannot be divided"),
    "pairs of samples": (lambda w, x, y: x[:, 0].reshape((-1, 2, WIDTH)).sum(1), "no dim of samples"),
    "an exponent by their number": (lambda w, x, y: x ** len(x), "other things"),
    "a place by their number": (lambda w, x, y: lax.slice_in_dim(x, i := len(x) // 4, i + 1, axis=1), "other things"),
    "a constant for each sample": (lambda w, x, y: x + np.ones((len(x), 1, 1), np.float32), "other things"),
    "a fixed number": (lambda w, x, y: x.reshape((SAMPLES, -1, 2, 12)), "cannot be computed for fewer samples"),
    "a scatter on top of something": (lambda w, x, y: w.at[y].add(x), "`scatter-add` brings samples together"),
    "other ops for fewer samples": (lambda w, x, y: x if len(x) == SAMPLES else -x, "other things"),
    "fewer dims for one sample": (lambda w, x, y: x.sum(0) if len(x) < SAMPLES else x * 2 + 1, "other things"),
    "a callback": (lambda w, x, y: (jax.debug.callback(print), x)[1], "it has effects"),
}  # fmt: skip


def arguments() -> tuple[jax.Array, jax.Array, jax.Array]:
    w, x, y = jax.random.split(jax.random.key(0), 3)
    return (
        jax.random.normal(w, (WIDTH, WIDTH)),
        jax.random.normal(x, (SAMPLES, TIME, WIDTH)),
        jax.random.randint(y, (SAMPLES, TIME), 0, WIDTH),
    )


def assert_same(function: Function, parts: int, *args: Any, batch: Any = 1) -> None:
    whole, stepwise = (jax.jit(each)(*args) for each in (function, in_micro_batches(function, parts, batch)))
    assert jax.tree.structure(whole) == jax.tree.structure(stepwise)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(stepwise), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SEPARATE)
@pytest.mark.parametrize("parts", [2, 4])
def test_results_of_samples_are_put_together_in_order(name: str, parts: int) -> None:
    assert_same(SEPARATE[name], parts, *arguments(), batch=(1, 2))


@pytest.mark.parametrize("name", [name for name in SEPARATE if name not in ("the largest", "no samples")])
def test_gradients_are_summed(name: str) -> None:
    def step(w: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean(jnp.square(SEPARATE[name](w, x, y)) + jnp.sum(w)))(w)
        return loss, w - 0.1 * gradient / jnp.linalg.norm(gradient)

    assert_same(step, 4, *arguments(), batch=(1, 2))


@pytest.mark.parametrize("name", MIXED)
def test_what_needs_several_samples_is_refused(name: str) -> None:
    function, reason = MIXED[name]
    with pytest.raises(MicroBatchError, match=f"sum them up: .*({reason})"):
        jax.eval_shape(in_micro_batches(function, 2, (1, 2)), *arguments())


@pytest.mark.parametrize("parts", [3, 16])
def test_samples_that_cannot_be_divided_are_an_error(parts: int) -> None:
    with pytest.raises(MicroBatchError, match=f"8 samples cannot be divided into {parts} equal parts"):
        in_micro_batches(SEPARATE["products"], parts, (1, 2))(*arguments())


@pytest.mark.parametrize("positions", [(0, 1), ()])
def test_arguments_without_one_number_of_samples_are_an_error(positions: Any) -> None:
    with pytest.raises(MicroBatchError, match=r"the arguments at batch_argnums have .* samples along their first dims"):
        in_micro_batches(SEPARATE["products"], 2, positions)(*arguments())


@pytest.mark.parametrize("parts", [0, -2, 2.0])
def test_a_number_of_parts_that_is_none_is_an_error(parts: Any) -> None:
    with pytest.raises(OptionError, match=r"num_micro_batches=.*: it must be a whole number of at least 1"):
        in_micro_batches(SEPARATE["products"], parts)


def test_python_numbers_and_keywords_are_taken_as_by_jax_jit() -> None:
    def step(w: jax.Array, x: jax.Array, rate: float, *, decay: float) -> jax.Array:
        return decay * w - rate * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)

    w, x, _ = arguments()
    w, x = w.astype(jnp.bfloat16), x.astype(jnp.bfloat16)
    whole, stepwise = (jax.jit(each)(w, x, 0.1, decay=0.9) for each in (step, in_micro_batches(step, 2)))
    assert whole.dtype == stepwise.dtype == jnp.bfloat16
    np.testing.assert_allclose(whole.astype(np.float32), stepwise.astype(np.float32), rtol=0.02, atol=0.02)


def test_arrays_in_explicit_mode_are_an_error() -> None:
    mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    w, x, y = arguments()
    x = jax.device_put(x, jax.NamedSharding(mesh, jax.P()))
    with pytest.raises(MicroBatchError, match="takes no arrays with shardings in their types"):
        jax.eval_shape(in_micro_batches(SEPARATE["products"], 2, (1, 2)), w, x, y)


def test_one_micro_batch_is_the_function_itself() -> None:
    assert_same(MIXED["samples in reverse"][0], 1, *arguments(), batch=(1, 2))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "gpt", "llama, remat", "moe", "t5"])
def test_training_steps_of_models_stay_the_same(model: str) -> None:
    built = build(model, TINY)
    assert_same(train_step(built, jax.value_and_grad), 2, built.state, built.batch)


@pytest.mark.slow
def test_activations_of_one_part_are_kept_at_a_time() -> None:
    built = build("gpt", SIZES["gpt"])
    step = train_step(built, jax.value_and_grad)
    needed = []
    for parts in (1, 2, 4):
        compiled = jax.jit(in_micro_batches(step, parts)).lower(built.state, built.batch).compile()
        memory = compiled.memory_analysis()
        assert memory is not None
        needed.append(memory.temp_size_in_bytes)
    assert needed[1] < 0.6 * needed[0]
    assert needed[2] < 0.6 * needed[1]


@pytest.mark.slow
def test_a_plan_of_micro_batches_equals_the_serial_run() -> None:
    built = build("mlp", SIZES["mlp"])
    step = in_micro_batches(train_step(built, jax.value_and_grad), 2)
    mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    plan = autoshard(step, mesh, built.state, built.batch, option=PlanOptions(costs="estimate"))
    found, expected = plan.jit(step)(built.state, built.batch), jax.jit(step)(built.state, built.batch)
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
