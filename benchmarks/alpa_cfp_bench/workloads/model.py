"""Training steps from their parts: a model's loss and update.

A model is written once, without alpa and without micro-batches (`loss`, `update`); the functions here compose both with
a given `value_and_grad`: alpa's for the parallel program, jax's for the serial one. Invariants:
the loss is a mean over samples; nothing is random after initialisation, which comes from fixed seeds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from alpa.model.model_util import TrainState
from flax import linen as nn

Metrics = dict[str, jax.Array]


@dataclass(frozen=True)
class Model:
    """The parts of one training step of a model.

    Attributes:
        name: its architecture, by which `shardings` knows its parameters; "gpt" of "gpt_wide" too.
        state: flax's training state before the first step.
        batch: arrays whose dim 0 are the samples.
        loss: (parameters, state, batch) -> (loss, auxiliary values: "metrics", and what else `update` needs).
        update: (state, gradients, auxiliary values) -> the state after the step.
        rounding: By how much of an array's largest entry rounding alone may change it, where a step computes in less
            than float32; 0 where it does not.
    """

    name: str
    state: Any
    batch: dict[str, jax.Array]
    loss: Callable[[Any, Any, dict[str, jax.Array]], tuple[jax.Array, dict[str, Any]]]
    update: Callable[[Any, Any, dict[str, Any]], Any]
    rounding: float = 0.0


def train_step(model: Model, value_and_grad: Callable[..., Any]) -> Callable[[Any, Any], tuple[Any, Metrics, Any]]:
    """The step of `model`: (state, batch) -> (new state, metrics, gradients)."""

    def step(state: Any, batch: Any) -> tuple[Any, Metrics, Any]:
        def loss(params: Any) -> tuple[jax.Array, dict[str, Any]]:
            return model.loss(params, state, batch)

        (value, aux), grads = value_and_grad(loss, has_aux=True)(state.params)
        return model.update(state, grads, aux), {"loss": value, **aux["metrics"]}, grads

    return step


def training_step(model: Model, value_and_grad: Callable[..., Any]) -> Callable[[Any, Any], tuple[Any, jax.Array]]:
    """The same without what only tests look at: (state, batch) -> (new state, loss)."""

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        new, metrics, _ = train_step(model, value_and_grad)(state, batch)
        return new, metrics["loss"]

    return step


def step_of_parts(model: Model) -> Callable[[Any, Sequence[Any]], tuple[Any, Metrics, Any]]:
    """`train_step` of plain jax over micro-batches that are given one by one; their gradients are averaged.

    This is what alpa documents micro-batches to be.
    """

    def step(state: Any, parts: Sequence[Any]) -> tuple[Any, Metrics, Any]:
        value_and_grad = jax.value_and_grad(model.loss, has_aux=True)
        values = [value_and_grad(state.params, state, part) for part in parts]
        (value, aux), grads = jax.tree.map(lambda *each: sum(each) / len(parts), *values)
        return model.update(state, grads, aux), {"loss": value, **aux["metrics"]}, grads

    return step


def micro_batched_step(model: Model, num_micro_batches: int | None) -> Callable[[Any, Any], tuple[Any, Metrics, Any]]:
    """The same over a whole batch, cut into so many consecutive parts along dim 0; None is `train_step` itself."""
    if not num_micro_batches:
        return train_step(model, jax.value_and_grad)

    def step(state: Any, batch: Any) -> tuple[Any, Metrics, Any]:
        size = jax.tree.leaves(batch)[0].shape[0] // num_micro_batches
        starts = range(0, num_micro_batches * size, size)
        parts = [jax.tree.map(lambda array, at=at: array[at : at + size], batch) for at in starts]
        return step_of_parts(model)(state, parts)

    return step


def apply_gradients(state: Any, grads: Any, aux: dict[str, Any]) -> Any:
    """The `update` of a model without further state."""
    del aux
    return state.apply_gradients(grads=grads)


def optimizer(learning_rate: float) -> optax.GradientTransformation:
    """The optimizer of all models."""
    # Momentum gives the optimizer a state that must be kept and sharded too. Not Adam: its first step divides a
    # gradient by its own size and so turns rounding into visible differences.
    return optax.sgd(learning_rate, momentum=0.9)


def first_step_number() -> jax.Array:
    """The `step` of a state before the first step."""
    # flax starts with the Python number 0, which is weakly typed: the second step would be another program.
    return jnp.zeros((), jnp.int32)


def initial_state(module: nn.Module, inputs: Sequence[jax.Array], learning_rate: float) -> Any:
    """flax's training state of a module, given inputs of its call."""
    params = jax.jit(module.init)(jax.random.key(0), *inputs)
    state = TrainState.create(apply_fn=module.apply, params=params, tx=optimizer(learning_rate), dynamic_scale=None)
    return state.replace(step=first_step_number())
