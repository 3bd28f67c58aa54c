"""The training steps of the suites' cases, of which only shapes exist: no parameter is allocated, whatever the size.

Takes a case; gives the step and the shapes of its arguments, as Alpa's benchmark trains them: GPT with AdamW and MoE
with Adafactor, both in float16 with a float32 master copy (benchmark_one_case_gpt_bert.py, benchmark_one_case_moe.py);
Wide-ResNet in float32 with Nesterov momentum (benchmark_one_case_wresnet.py). LLaMA has AdamW, computes in bfloat16 and
keeps float32. Invariant: with `remat` each layer is computed again in the backward pass, as Alpa's suites have it; the
numbers that come out are the same without.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import optax
from alpa.model.bert_model import BertConfig
from alpa.model.gpt_model import FlaxGPTForLMModule
from alpa.model.model_util import TrainState
from alpa.model.moe import FlaxMoEForLMModule, MoEConfig
from alpa.model.wide_resnet import BottleneckResNetBlock, ResNet
from alpa.model.wide_resnet import TrainState as ResNetTrainState
from flax import linen as nn

from alpa_cfp_bench.workloads.llama import LlamaLayer, Output, RmsNorm
from alpa_cfp_bench.workloads.published import Case

_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")


@dataclass(frozen=True)
class Program:
    """A training step.

    Attributes:
        step: (state, batch) -> (new state, loss); the state may be donated.
        state, batch: Pytrees of `jax.ShapeDtypeStruct`.
    """

    step: Callable[[Any, Any], tuple[Any, jax.Array]]
    state: Any
    batch: dict[str, jax.ShapeDtypeStruct]

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(prod(leaf.shape) for leaf in jax.tree.leaves(self.state.params))


def program_of(case: Case, *, remat: bool = True) -> Program:
    """The training step of a case, for `case.samples` samples."""
    if case.suite == "wide_resnet":
        return _image_program(case, remat)
    module, transformation, master_copy = _language_model(case, remat)
    tokens = jax.ShapeDtypeStruct((case.samples, case.sequence), jnp.int32)
    batch = dict.fromkeys((*_INPUTS, "labels"), tokens)
    batch = {name: jax.ShapeDtypeStruct(each.shape, each.dtype) for name, each in batch.items()}

    def initial() -> Any:
        ids = [jnp.zeros(tokens.shape, tokens.dtype) for _ in _INPUTS]
        params = module.init(jax.random.key(0), *ids)
        state = TrainState.create(
            apply_fn=module.apply,
            params=params,
            tx=transformation,
            use_master_copy=master_copy,
            dynamic_scale=None,
        )
        return state.replace(step=jnp.zeros((), jnp.int32))

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        def loss(params: Any) -> jax.Array:
            logits = state.apply_fn(params, *(batch[name] for name in _INPUTS))[0]
            counts = jnp.where(batch["labels"] > 0, 1.0, 0.0)
            labels = jax.nn.one_hot(batch["labels"], logits.shape[-1])
            losses = -jnp.sum(labels * jax.nn.log_softmax(logits, axis=-1), axis=-1)
            return (counts * losses).sum() / counts.sum()

        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads), value

    return Program(step, jax.eval_shape(initial), batch)


def _language_model(case: Case, remat: bool) -> tuple[nn.Module, optax.GradientTransformation, bool]:
    """The module, what it trains with, and whether it keeps a float32 copy of float16 parameters."""
    sizes = {
        "vocab_size": case.vocabulary,
        "hidden_size": case.hidden,
        "num_hidden_layers": case.layers,
        "num_attention_heads": case.heads,
        "intermediate_size": case.intermediate,
        "max_position_embeddings": case.sequence,
        "tie_word_embeddings": False,
        "gradient_checkpointing": remat,
    }
    adamw = optax.adamw(1e-2, mask=_decays)
    if case.suite == "gpt":
        return FlaxGPTForLMModule(BertConfig(**sizes, type_vocab_size=0), dtype=jnp.dtype(jnp.float16)), adamw, True
    if case.suite == "moe":
        # As Alpa corrects it: no larger than all there is.
        group = min(case.expert_group, case.samples * case.sequence)
        config = MoEConfig(**sizes, expert_group_size=group, expert_number=case.experts)
        adafactor = optax.adafactor(learning_rate=1e-2, weight_decay_mask=_decays)
        return FlaxMoEForLMModule(config, dtype=jnp.dtype(jnp.float16)), adafactor, True
    return _Llama(case, remat), adamw, False


def _decays(params: Any) -> Any:
    """Norms and biases do not decay."""
    return jax.tree.map(lambda param: param.ndim > 1, params)


class _LlamaLayer(LlamaLayer):
    """A layer whose MLP is as wide as the published one's."""

    intermediate: int = 0

    @nn.compact
    def __call__(self, x: jax.Array, position_ids: jax.Array) -> jax.Array:
        hidden = x.shape[-1]
        x = x + self._dense(hidden, "o")(self._attended(RmsNorm(name="attention_norm")(x), position_ids))
        y = RmsNorm(name="mlp_norm")(x)
        gated = nn.silu(self._dense(self.intermediate, "gate")(y)) * self._dense(self.intermediate, "up")(y)
        return x + self._dense(hidden, "down")(gated)


class _Llama(nn.Module):
    """LLaMA as published, its arguments those of Alpa's language models: as many heads of keys as of queries."""

    case: Case
    remat: bool

    @nn.compact
    def __call__(
        self, input_ids: jax.Array, attention_mask: jax.Array, token_type_ids: jax.Array, position_ids: jax.Array
    ) -> Output:
        del attention_mask, token_type_ids  # all tokens count, and they are of one type
        case, dtype = self.case, jnp.dtype(jnp.bfloat16)
        x = nn.Embed(case.vocabulary, case.hidden, dtype=dtype, name="embedding")(input_ids)
        layer = nn.remat(_LlamaLayer) if self.remat else _LlamaLayer
        for number in range(case.layers):
            x = layer(case.heads, case.heads, dtype, case.intermediate, name=f"layer_{number}")(x, position_ids)
        logits = nn.Dense(case.vocabulary, use_bias=False, dtype=dtype, name="head")(RmsNorm(name="norm")(x))
        return Output(logits.astype(jnp.float32))


def _image_program(case: Case, remat: bool) -> Program:
    batch = {
        "image": jax.ShapeDtypeStruct((case.samples, case.image, case.image, 3), jnp.float32),
        "label": jax.ShapeDtypeStruct((case.samples,), jnp.int32),
    }
    module = ResNet(
        stage_sizes=case.stages,
        block_cls=nn.remat(BottleneckResNetBlock) if remat else BottleneckResNetBlock,
        num_classes=case.classes,
        num_filters=case.channels,
        width_factor=case.width,
    )

    def initial() -> Any:
        variables = module.init(jax.random.key(0), jnp.zeros(batch["image"].shape, batch["image"].dtype))
        state = ResNetTrainState.create(
            apply_fn=module.apply,
            params=variables["params"],
            tx=optax.sgd(0.1, momentum=0.9, nesterov=True),
            batch_stats=variables["batch_stats"],
            dynamic_scale=None,
        )
        return state.replace(step=jnp.zeros((), jnp.int32))

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        def loss(params: Any) -> tuple[jax.Array, Any]:
            variables = {"params": params, "batch_stats": state.batch_stats}
            logits, updated = state.apply_fn(variables, batch["image"], mutable=["batch_stats"])
            labels = jax.nn.one_hot(batch["label"], case.classes)
            return -jnp.mean(jnp.sum(labels * jax.nn.log_softmax(logits), axis=-1)), updated["batch_stats"]

        (value, batch_stats), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads, batch_stats=batch_stats), value

    return Program(step, jax.eval_shape(initial), batch)
