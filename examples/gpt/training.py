"""The training step, and the methods that run it: serially, or split by CFP or by Alpa's ILP.

Takes `Settings`; gives the state before the first step and a callable (state, batch) -> (state, loss). Invariant: the
step is the same function under each method, and so are state and batches, so the losses can be compared step by step
(the reordered run's batches are the same but for the order of their sequences, on which no loss depends).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from alpa_cfp import CFPOption, CFPShardParallel
from gpt.model import GPT, Size, mean_loss

METHODS = {
    "cfp": "alpa.parallelize with alpa_cfp.CFPShardParallel",
    "ilp": "alpa.parallelize with alpa.ShardParallel, which is Alpa's own ILP",
    "serial": "jax.jit on one device",
}
# The serial run with the sequences of each batch in reverse order: only its rounding differs (see gpt.agreement).
REORDERED = "reordered"
Batch = dict[str, Any]
Step = Callable[[TrainState, Batch], tuple[TrainState, jax.Array]]


@dataclass(frozen=True)
class Settings:
    """The settings of a run; a run that continues from a checkpoint must have the same.

    Attributes:
        steps: The length of the whole run, by which the learning rate falls.
        batch_size: Sequences a step.
        learning_rate: At its highest, after the warmup.
        seed: Of the parameters and the batches.
        size: Of the model.
    """

    steps: int
    batch_size: int
    learning_rate: float
    seed: int
    size: Size = field(default_factory=Size)


@dataclass
class Curve:
    """The losses of a run.

    Attributes:
        losses: The training loss of each step so far, in nats a byte.
        validation: The validation loss after some steps, by their number.
    """

    losses: list[float] = field(default_factory=list)
    validation: dict[int, float] = field(default_factory=dict)


def make_state(settings: Settings) -> TrainState:
    """The state before the first step, on one device."""
    model, optimizer = _model_and_optimizer(settings)
    params = model.init(jax.random.key(settings.seed), jnp.zeros((1, settings.size.length), jnp.int32))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)
    # flax starts with the Python number 0, which is weakly typed: the second step would be another program.
    return state.replace(step=jnp.zeros((), jnp.int32))


@cache
def _model_and_optimizer(settings: Settings) -> tuple[GPT, optax.GradientTransformation]:
    """The same objects at each call: they are part of a state's type, and a state of another type compiles again."""
    warmup = max(1, settings.steps // 10)
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, settings.learning_rate, warmup, max(settings.steps, warmup + 1), 0.05 * settings.learning_rate
    )
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.99, weight_decay=0.01))
    return GPT(settings.size), optimizer


def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, jax.Array]:
    """One step: the new state, and the loss before it."""

    def loss(params: Any) -> jax.Array:
        return mean_loss(state.apply_fn(params, batch["inputs"]), batch["labels"])

    value, grads = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=grads), value


def make_step(method: str, mesh: tuple[int, int], costs: str) -> Step:
    """`train_step` under a method of METHODS, or REORDERED; it uses up the state that it is given.

    Args:
        method: Which.
        mesh: The logical mesh of those that split the step.
        costs: Where CFP knows from what things take: "measure" or "estimate".
    """
    if method in ("serial", REORDERED):
        serial = jax.jit(train_step, donate_argnums=0)
        return serial if method == "serial" else _on_reversed_batches(serial)
    devices = alpa.LocalPhysicalDeviceMesh(jax.local_devices()[: mesh[0] * mesh[1]]).get_logical_mesh(mesh)
    if method == "ilp":
        parallel = alpa.ShardParallel(devices=devices)
    else:
        parallel = CFPShardParallel(devices=devices, auto_sharding_option=CFPOption(costs=costs))  # pyright: ignore
    return alpa.parallelize(train_step, method=parallel, donate_argnums=(0,))  # pyright: ignore


def _on_reversed_batches(step: Step) -> Step:
    return lambda state, batch: step(state, {name: sequences[::-1] for name, sequences in batch.items()})


def params_on_one_device(state: TrainState) -> Any:
    """The parameters, to be looked at; those of `state` stay where they are."""
    return jax.device_put(state.params, jax.local_devices()[0])


@partial(jax.jit, static_argnums=0)
def loss_of(apply_fn: Callable[..., jax.Array], params: Any, batch: Batch) -> jax.Array:
    """The loss on a batch, without training on it."""
    return mean_loss(apply_fn(params, batch["inputs"]), batch["labels"])
