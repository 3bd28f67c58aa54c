"""The training steps of Alpa's `shard_parallel` tests: takes sizes, gives back a step, its state and its batch.

State and batch are shapes and dtypes without values, since only what the step is compiled to is looked at. Invariant:
sizes, losses and optimizers are those of Alpa's tests, on which their expected numbers depend; the models are Alpa's
own, or written here where its tests write theirs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from alpa.model.bert_model import BertConfig, FlaxBertForMaskedLMModule, FlaxBertLayerCollection
from alpa.model.moe import FlaxMoEForLMModule, FlaxMoELayer, MoEConfig
from flax import linen as nn
from flax.training.train_state import TrainState

Batch = dict[str, jax.ShapeDtypeStruct]
Loss = Callable[[Any, Any, Any], jax.Array]  # (parameters, state, batch)
LEARNING_RATE = 1e-2
RANDOM_KEY = jax.ShapeDtypeStruct((2,), jnp.uint32)


@dataclass(frozen=True)
class Program:
    """A training step `(state, batch) -> new state`, and the shapes and dtypes of its arguments."""

    step: Callable[[Any, Any], Any]
    state: Any
    batch: Batch


class ConvTrainState(TrainState):
    """The state of a net with batch norms."""

    batch_stats: Any


def floats(*dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, jnp.float32)


def ints(*dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, jnp.int32)


def training(
    module: nn.Module, inputs: list[Any], batch: Batch, loss: Loss, optimizer: optax.GradientTransformation
) -> Program:
    """The program that takes one step of `optimizer` down `loss`; `inputs` are what the module is initialised with."""

    def initial_state() -> TrainState:
        zeros = [jnp.zeros(given.shape, given.dtype) for given in inputs]
        params = module.init(jax.random.PRNGKey(0), *zeros)
        return TrainState.create(apply_fn=module.apply, params=params, tx=optimizer)

    def step(state: Any, batch: Any) -> Any:
        return state.apply_gradients(grads=jax.grad(loss)(state.params, state, batch))

    return Program(step, jax.eval_shape(initial_state), batch)


def squared_error(output: jax.Array, target: jax.Array) -> jax.Array:
    return jnp.mean((output - target) ** 2)


def cross_entropies(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The loss of each token, f32[batch, sequence]."""
    return -jnp.sum(jax.nn.one_hot(labels, logits.shape[-1]) * jax.nn.log_softmax(logits, axis=-1), axis=-1)


class Mlp(nn.Module):
    """Dense layers of one width with relu in between."""

    layers: int
    hidden: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(self.layers - 1):
            x = nn.relu(nn.Dense(self.hidden)(x))
        return nn.Dense(self.hidden)(x)


def mlp(batch: int, hidden: int, optimizer: str = "adam", layers: int = 6) -> Program:
    """Dense layers; adafactor keeps factored second moments of all kernels."""
    optimizers = {
        "adam": optax.adam(LEARNING_RATE),
        "adafactor": optax.adafactor(LEARNING_RATE, min_dim_size_to_factor=4),
    }
    arguments = {"x": floats(batch, hidden), "y": floats(batch, hidden)}

    def loss(params: Any, state: Any, batch: Any) -> jax.Array:
        return squared_error(state.apply_fn(params, batch["x"]), batch["y"])

    return training(Mlp(layers, hidden), [arguments["x"]], arguments, loss, optimizers[optimizer])


def _hidden_states_batch(batch: int, sequence: int, hidden: int) -> Batch:
    shape = (batch, sequence, hidden)
    return {"states": floats(*shape), "mask": ints(*shape[:2]), "target": floats(*shape), "rng": RANDOM_KEY}


def _layers_loss(*, deterministic: bool) -> Loss:
    """The squared error of what layers make of hidden states."""

    def loss(params: Any, state: Any, batch: Any) -> jax.Array:
        rngs = {"dropout": batch["rng"]}
        output = state.apply_fn(params, batch["states"], batch["mask"], deterministic, rngs=rngs)[0]
        return squared_error(output, batch["target"])

    return loss


def bert_layers(batch: int, sequence: int, hidden: int, *, remat: bool = False) -> Program:
    """Two BERT layers of 8 heads, with dropout."""
    config = BertConfig(
        num_hidden_layers=2,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_attention_heads=8,
        gradient_checkpointing=remat,
    )
    arguments = _hidden_states_batch(batch, sequence, hidden)
    inputs = [arguments["states"], arguments["mask"]]
    loss = _layers_loss(deterministic=False)
    return training(FlaxBertLayerCollection(config), inputs, arguments, loss, optax.adam(LEARNING_RATE))


def _language_batch(batch: int, sequence: int) -> Batch:
    names = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "labels")
    return {name: ints(batch, sequence) for name in names} | {"rng": RANDOM_KEY}


def _language_inputs(batch: Any) -> list[Any]:
    return [batch[name] for name in ("input_ids", "attention_mask", "token_type_ids", "position_ids")]


def _language_loss(*, deterministic: bool) -> Loss:
    """The mean loss of the tokens whose label is not 0."""

    def loss(params: Any, state: Any, batch: Any) -> jax.Array:
        rngs = {"dropout": batch["rng"]}
        logits = state.apply_fn(params, *_language_inputs(batch), deterministic=deterministic, rngs=rngs)[0]
        mask = jnp.where(batch["labels"] > 0, 1.0, 0.0)
        return (mask * cross_entropies(logits, batch["labels"])).sum() / mask.sum()

    return loss


def bert_language_model(batch: int, sequence: int, hidden: int, vocabulary: int) -> Program:
    """A masked language model of two BERT layers of 4 heads, with dropout."""
    config = BertConfig(
        num_hidden_layers=2,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_attention_heads=4,
        vocab_size=vocabulary,
        max_position_embeddings=sequence,
    )
    arguments = _language_batch(batch, sequence)
    loss = _language_loss(deterministic=False)
    optimizer = optax.adam(LEARNING_RATE)
    return training(FlaxBertForMaskedLMModule(config), _language_inputs(arguments), arguments, loss, optimizer)


class TiedEmbedding(nn.Module):
    """An embedding that also gives the logits."""

    vocabulary: int
    hidden: int

    @nn.compact
    def __call__(self, ids: jax.Array) -> jax.Array:
        table = nn.Embed(self.vocabulary, self.hidden)
        return table(ids) @ table.embedding.T


def tied_embedding() -> Program:
    """Batch 8, sequence 8, hidden 8, vocabulary 1024."""
    arguments = {"x": ints(8, 8), "y": ints(8, 8)}

    def loss(params: Any, state: Any, batch: Any) -> jax.Array:
        return cross_entropies(state.apply_fn(params, batch["x"]), batch["y"]).sum()

    return training(TiedEmbedding(1024, 8), [arguments["x"]], arguments, loss, optax.adam(LEARNING_RATE))


_MOE = {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 16, "expert_number": 16}


def moe_layer() -> Program:
    """A transformer layer with 16 experts: batch 64, sequence 16, hidden 64, without dropout."""
    arguments = _hidden_states_batch(64, 16, 64)
    inputs = [arguments["states"], arguments["mask"]]
    module = FlaxMoELayer(MoEConfig(expert_group_size=32, **_MOE))
    return training(module, inputs, arguments, _layers_loss(deterministic=True), optax.adam(LEARNING_RATE))


def moe_language_model() -> Program:
    """A language model of two layers, one of them with 16 experts: batch 64, sequence 16, hidden 64, vocabulary 32."""
    config = MoEConfig(num_hidden_layers=2, max_position_embeddings=16, vocab_size=32, expert_group_size=32, **_MOE)
    arguments = _language_batch(64, 16)
    optimizer = optax.adafactor(
        LEARNING_RATE,
        weight_decay_mask=lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params),
        min_dim_size_to_factor=4,
    )
    loss = _language_loss(deterministic=True)
    return training(FlaxMoEForLMModule(config), _language_inputs(arguments), arguments, loss, optimizer)


class ConvNet(nn.Module):
    """Convolutions that halve the image, each with batch norm, relu and max pooling."""

    layers: int
    channels: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(self.layers):
            x = nn.Conv(self.channels, (3, 3), strides=(2, 2), use_bias=False)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=False)(x))
            x = nn.max_pool(x, (2, 2), strides=(1, 1), padding="SAME")
        return x


class DepthwiseNet(nn.Module):
    """A convolution to 8 times the channels, one within each of them, and one back."""

    channels: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        inner = 8 * self.channels
        x = nn.Conv(inner, (3, 3), use_bias=False)(x)
        x = nn.Conv(inner, (3, 3), feature_group_count=inner, use_bias=False)(x)
        x = nn.Conv(self.channels, (3, 3), use_bias=False)(x)
        return nn.BatchNorm(use_running_average=False)(nn.relu(x))


def conv_net(batch: int, image: int, channels: int, layers: int) -> Program:
    """`ConvNet` with the squared error of its output, SGD with momentum."""
    out = image // 2**layers
    return _conv_training(ConvNet(layers, channels), floats(batch, image, image, channels), (out, out))


def depthwise_net(batch: int, image: int, channels: int) -> Program:
    """`DepthwiseNet` with the squared error of its output, SGD with momentum."""
    return _conv_training(DepthwiseNet(channels), floats(batch, image, image, channels), (image, image))


def _conv_training(module: nn.Module, x: jax.ShapeDtypeStruct, out: tuple[int, int]) -> Program:
    def initial_state() -> ConvTrainState:
        variables = module.init(jax.random.PRNGKey(0), jnp.zeros(x.shape, x.dtype))
        return ConvTrainState.create(
            apply_fn=module.apply,
            params=variables["params"],
            batch_stats=variables["batch_stats"],
            tx=optax.sgd(0.1, momentum=0.9),
        )

    def step(state: Any, batch: Any) -> Any:
        def loss(params: Any) -> tuple[jax.Array, Any]:
            variables = {"params": params, "batch_stats": state.batch_stats}
            output, changed = state.apply_fn(variables, batch["x"], mutable=["batch_stats"])
            return squared_error(output, batch["y"]), changed

        grads, changed = jax.grad(loss, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads, batch_stats=changed["batch_stats"])

    target = floats(x.shape[0], *out, x.shape[-1])
    return Program(step, jax.eval_shape(initial_state), {"x": x, "y": target})


class DropoutNet(nn.Module):
    """Two dense layers with dropout in between."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Dropout(0.1, deterministic=False)(nn.Dense(16, use_bias=False)(x))
        return nn.Dense(16, use_bias=False)(x)


def dropout_net() -> Program:
    """Batch 32, sequence 32, hidden 16, SGD."""
    arguments = {"x": floats(32, 32, 16), "y": floats(32, 32, 16), "rng": RANDOM_KEY}
    module = DropoutNet()

    def initial_state() -> TrainState:
        keys = {"params": jax.random.PRNGKey(0), "dropout": jax.random.PRNGKey(1)}
        params = module.init(keys, jnp.zeros((32, 32, 16)))
        return TrainState.create(apply_fn=module.apply, params=params, tx=optax.sgd(LEARNING_RATE))

    def step(state: Any, batch: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            return squared_error(state.apply_fn(params, batch["x"], rngs={"dropout": batch["rng"]}), batch["y"])

        return state.apply_gradients(grads=jax.grad(loss)(state.params))

    return Program(step, jax.eval_shape(initial_state), arguments)


class GatherNet(nn.Module):
    """Two dense layers, of whose 32 values in between the first 16 are taken by their indices."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(16, use_bias=False)(nn.Dense(32, use_bias=False)(x)[:, jnp.arange(16)])


def gather_net() -> Program:
    """Batch 256, hidden 32, SGD."""
    arguments = {"x": floats(256, 32), "y": floats(256, 16)}

    def loss(params: Any, state: Any, batch: Any) -> jax.Array:
        return squared_error(state.apply_fn(params, batch["x"]), batch["y"])

    return training(GatherNet(), [arguments["x"]], arguments, loss, optax.sgd(LEARNING_RATE))
