"""Small but real models: takes a model's name, gives back its training state, a batch, its loss and its update.

A model is written once, without alpa and without micro-batches (`loss`, `update`); `train_step` puts them together
around whichever `value_and_grad` it is given: alpa's for the parallel program, jax's for the serial one. The tests run
them in the size TINY, the benchmarks in sizes of their own. Invariants: TINY's sizes are divisible by 8, so each mesh
of up to 8 devices divides them; the loss is a mean over samples; nothing is random after initialisation, which comes
from fixed seeds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from alpa.model.bert_model import BertConfig, FlaxBertForMaskedLMModule
from alpa.model.gpt_model import FlaxGPTForLMModule
from alpa.model.model_util import TrainState
from alpa.model.moe import FlaxMoEForLMModule, MoEConfig
from alpa.model.unet_2d import get_unet_2d
from alpa.model.wide_resnet import BottleneckResNetBlock, ResNet, ResNetBlock
from alpa.model.wide_resnet import TrainState as ResNetTrainState
from flax import linen as nn

from integration.batches import masked_sentences, next_tokens
from integration.llama_model import Llama

BATCH_SIZE = 16


@dataclass(frozen=True)
class Size:
    """How large a model and its batch are; each model uses the fields that it has a meaning for."""

    batch: int
    hidden: int = 32
    layers: int = 2
    heads: int = 8
    sequence: int = 16
    vocabulary: int = 64
    image: int = 16
    channels: int = 8


TINY = Size(batch=BATCH_SIZE)

Metrics = dict[str, jax.Array]


@dataclass(frozen=True)
class Model:
    """What one training step of a model is made of.

    Attributes:
        name: its key in `MODELS`.
        state: flax's training state before the first step.
        batch: arrays whose dim 0 has BATCH_SIZE samples.
        loss: (parameters, state, batch) -> (loss, auxiliary values: "metrics", and what else `update` needs).
        update: (state, gradients, auxiliary values) -> the state after the step.
    """

    name: str
    state: Any
    batch: dict[str, jax.Array]
    loss: Callable[[Any, Any, dict[str, jax.Array]], tuple[jax.Array, dict[str, Any]]]
    update: Callable[[Any, Any, dict[str, Any]], Any]


def train_step(model: Model, value_and_grad: Callable[..., Any]) -> Callable[[Any, Any], tuple[Any, Metrics, Any]]:
    """The step of `model`: (state, batch) -> (new state, metrics, gradients)."""

    def step(state: Any, batch: Any) -> tuple[Any, Metrics, Any]:
        def loss(params: Any) -> tuple[jax.Array, dict[str, Any]]:
            return model.loss(params, state, batch)

        (value, aux), grads = value_and_grad(loss, has_aux=True)(state.params)
        return model.update(state, grads, aux), {"loss": value, **aux["metrics"]}, grads

    return step


class Mlp(nn.Module):
    """Four dense layers with biases, relu in between."""

    hidden: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for width in (2 * self.hidden, self.hidden, 2 * self.hidden):
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.hidden)(x)


def _apply_gradients(state: Any, grads: Any, aux: dict[str, Any]) -> Any:
    del aux
    return state.apply_gradients(grads=grads)


def _optimizer(learning_rate: float) -> optax.GradientTransformation:
    # Momentum gives the optimizer a state that must be kept and sharded too. Not Adam: its first step divides a
    # gradient by its own size and so turns rounding into visible differences.
    return optax.sgd(learning_rate, momentum=0.9)


def _first_step_number() -> jax.Array:
    # flax starts with the Python number 0, which is weakly typed: the second step would be another program.
    return jnp.zeros((), jnp.int32)


def _initial_state(module: nn.Module, inputs: Sequence[jax.Array], learning_rate: float) -> Any:
    params = jax.jit(module.init)(jax.random.key(0), *inputs)
    state = TrainState.create(apply_fn=module.apply, params=params, tx=_optimizer(learning_rate), dynamic_scale=None)
    return state.replace(step=_first_step_number())


def _mlp(size: Size) -> Model:
    rng = np.random.default_rng(0)
    batch = {name: jnp.asarray(rng.normal(size=(size.batch, size.hidden)), jnp.float32) for name in ("x", "y")}
    module = Mlp(size.hidden)
    state = _initial_state(module, [batch["x"]], 0.5)

    def loss(params: Any, state: Any, batch: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, Any]]:
        error = state.apply_fn(params, batch["x"]) - batch["y"]
        return jnp.mean(error**2), {"metrics": {"mean_absolute_error": jnp.mean(jnp.abs(error))}}

    return Model("mlp", state, batch, loss, _apply_gradients)


def _language_model(name: str, module: nn.Module, size: Size, learning_rate: float) -> Model:
    batch = next_tokens(size.batch, size.sequence, size.vocabulary)
    inputs = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
    state = _initial_state(module, [batch[key] for key in inputs], learning_rate)

    def loss(params: Any, state: Any, batch: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, Any]]:
        logits = state.apply_fn(params, *(batch[key] for key in inputs)).logits
        labels = jax.nn.one_hot(batch["labels"], size.vocabulary)
        value = -jnp.mean(jnp.sum(labels * jax.nn.log_softmax(logits), axis=-1))
        accuracy = jnp.mean(jnp.argmax(logits, axis=-1) == batch["labels"])
        return value, {"metrics": {"accuracy": accuracy}}

    return Model(name, state, batch, loss, _apply_gradients)


def _bert(size: Size) -> Model:
    config = BertConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.hidden,
        max_position_embeddings=size.sequence,
        type_vocab_size=8,
        tie_word_embeddings=True,
    )
    module = FlaxBertForMaskedLMModule(config)
    batch = masked_sentences(size.batch, size.sequence, size.vocabulary)
    inputs = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
    state = _initial_state(module, [batch[key] for key in inputs], 0.5)

    def loss(params: Any, state: Any, batch: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, Any]]:
        logits = state.apply_fn(params, *(batch[key] for key in inputs)).logits
        # As in alpa's tests: a position counts if it has a label, and the loss is normalised by how many there are.
        counts = jnp.where(batch["labels"] > 0, 1.0, 0.0)
        labels = jax.nn.one_hot(batch["labels"], size.vocabulary)
        losses = -jnp.sum(labels * jax.nn.log_softmax(logits), axis=-1)
        hits = jnp.argmax(logits, axis=-1) == batch["labels"]
        value = jnp.sum(counts * losses) / jnp.sum(counts)
        return value, {"metrics": {"accuracy": jnp.sum(counts * hits) / jnp.sum(counts)}}

    return Model("bert", state, batch, loss, _apply_gradients)


def _gpt(size: Size) -> Model:
    config = BertConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.hidden,
        max_position_embeddings=size.sequence,
        type_vocab_size=0,
        tie_word_embeddings=True,
    )
    return _language_model("gpt", FlaxGPTForLMModule(config), size, 0.5)


def _moe(size: Size) -> Model:
    # A group is one sequence, so the same tokens compete for an expert whatever the micro-batches are. The embedding is
    # not tied here, so it has a gradient of its own.
    config = MoEConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=2 * size.hidden,
        max_position_embeddings=size.sequence,
        tie_word_embeddings=False,
        expert_group_size=size.sequence,
        expert_number=8,
    )
    return _language_model("moe", FlaxMoEForLMModule(config), size, 0.5)


def _llama(size: Size, *ways: str) -> Model:
    module = Llama(
        vocabulary=size.vocabulary,
        hidden=size.hidden,
        layers=size.layers,
        heads=size.heads,
        kv_heads=size.heads // 2,
        remat="remat" in ways,
        scan="scan" in ways,
        tied="tied" in ways,
        dtype=jnp.dtype(jnp.bfloat16 if "bf16" in ways else jnp.float32),
    )
    return _language_model(", ".join(("llama", *ways)), module, size, 0.5)


def _wide_resnet(size: Size) -> Model:
    return _residual_net("wide_resnet", size, BottleneckResNetBlock, width_factor=2)


def _conv(size: Size) -> Model:
    return _residual_net("conv", size, ResNetBlock, width_factor=1)


def _residual_net(name: str, size: Size, block: Any, width_factor: int) -> Model:
    rng = np.random.default_rng(0)
    num_classes = 8
    batch = {
        "image": jnp.asarray(rng.normal(size=(size.batch, size.image, size.image, size.channels)), jnp.float32),
        "label": jnp.asarray(rng.integers(0, num_classes, size=(size.batch,)), jnp.int32),
    }
    module = ResNet(
        stage_sizes=[1, 1],
        block_cls=block,
        num_classes=num_classes,
        num_filters=size.channels,
        width_factor=width_factor,
    )
    variables = jax.jit(module.init)(jax.random.key(0), batch["image"])

    def trained(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        # The last batch norm of a block starts with scale 0, which cuts the block's convolutions off from the loss.
        is_scale = jax.tree_util.keystr(path, simple=True, separator="/").endswith("scale")
        return jnp.asarray(rng.uniform(0.5, 1.5, leaf.shape), jnp.float32) if is_scale else leaf

    state = ResNetTrainState.create(
        apply_fn=module.apply,
        params=jax.tree_util.tree_map_with_path(trained, variables["params"]),
        tx=_optimizer(0.1),
        batch_stats=variables["batch_stats"],
        dynamic_scale=None,
    )

    def loss(params: Any, state: Any, batch: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, Any]]:
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, updated = state.apply_fn(variables, batch["image"], mutable=["batch_stats"])
        labels = jax.nn.one_hot(batch["label"], num_classes)
        value = -jnp.mean(jnp.sum(labels * jax.nn.log_softmax(logits), axis=-1))
        accuracy = jnp.mean(jnp.argmax(logits, axis=-1) == batch["label"])
        return value, {"metrics": {"accuracy": accuracy}, "batch_stats": updated["batch_stats"]}

    def update(state: Any, grads: Any, aux: dict[str, Any]) -> Any:
        return state.apply_gradients(grads=grads, batch_stats=aux["batch_stats"])

    return Model(name, state.replace(step=_first_step_number()), batch, loss, update)


def _unet(size: Size) -> Model:
    # Two resolutions, with attention at the lower one: blocks of each kind, and its sides stay divisible by 8.
    module = get_unet_2d(
        sample_size=size.image,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(size.hidden, size.hidden),
        in_channels=size.channels,
        out_channels=size.channels,
        layers_per_block=1,
        num_attention_heads=size.heads,
        num_groups=8,
        add_manual_pipeline_markers=False,
    )
    rng = np.random.default_rng(0)
    shape = (size.batch, size.channels, size.image, size.image)
    batch = {
        "sample": jnp.asarray(rng.normal(size=shape), jnp.float32),
        "noise": jnp.asarray(rng.normal(size=shape), jnp.float32),
        "timestep": jnp.asarray(rng.integers(0, 1000, size=(size.batch,)), jnp.int32),
        "context": jnp.asarray(rng.normal(size=(size.batch, size.sequence, size.hidden)), jnp.float32),
    }
    inputs = ("sample", "timestep", "context")
    state = _initial_state(module, [batch[key] for key in inputs], 0.5)

    def loss(params: Any, state: Any, batch: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, Any]]:
        error = state.apply_fn(params, *(batch[key] for key in inputs)).sample - batch["noise"]
        return jnp.mean(error**2), {"metrics": {"mean_absolute_error": jnp.mean(jnp.abs(error))}}

    return Model("unet", state, batch, loss, _apply_gradients)


_BUILDERS: dict[str, Callable[..., Model]] = {
    "mlp": _mlp,
    "gpt": _gpt,
    "bert": _bert,
    "moe": _moe,
    "conv": _conv,
    "wide_resnet": _wide_resnet,
    "unet": _unet,
}
# What every program that alpa makes is tested with.
MODELS = tuple(_BUILDERS)
# What there is besides, for tests of CFP and for benchmarks.
_BUILDERS["llama"] = _llama
LLAMA_WAYS = ("remat", "scan", "tied", "bf16")


@cache
def _built(name: str, size: Size) -> Model:
    base, *ways = name.split(", ")
    if base not in _BUILDERS or not set(ways) <= set(LLAMA_WAYS if base == "llama" else ()):
        raise ValueError(f"no model is called {name!r}: there are {', '.join(_BUILDERS)}")
    return _BUILDERS[base](size, *ways)


def build(name: str, size: Size = TINY) -> Model:
    """The model called `name`: one of `MODELS`, or "llama", then any of LLAMA_WAYS, such as "llama, scan, remat".

    It is made once a process: states of two that were made apart have different trees, since their functions differ.

    Raises:
        ValueError: there is no such model.
    """
    return _built(name, size)


def abstract(name: str, size: Size) -> Model:
    """As `build`, with shapes in the place of arrays: nothing is computed, so a model may be as large as it likes."""
    built: list[Model] = []

    def arrays() -> tuple[Any, Any]:
        built.append(_built.__wrapped__(name, size))
        return built[0].state, built[0].batch

    state, batch = jax.eval_shape(arrays)
    return replace(built[0], state=state, batch=batch)
