"""Language models: takes a size, gives back Alpa's own BERT, GPT and mixture of experts, LLaMA, T5 and an LSTM."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from alpa.model.bert_model import BertConfig, FlaxBertForMaskedLMModule
from alpa.model.gpt_model import FlaxGPTForLMModule
from alpa.model.moe import FlaxMoEForLMModule, MoEConfig
from flax import linen as nn

from alpa_cfp_bench.workloads.batches import masked_sentences, next_tokens, translations
from alpa_cfp_bench.workloads.llama import Llama
from alpa_cfp_bench.workloads.lstm import Lstm
from alpa_cfp_bench.workloads.model import Model, apply_gradients, initial_state
from alpa_cfp_bench.workloads.sizes import Size
from alpa_cfp_bench.workloads.t5 import T5

# bfloat16 has 8 bits: two orders of the same sums differ by 6e-3 on these models, and a gradient that lacks the part of
# one of 8 devices by 1e-1.
_BF16_ROUNDING = 2e-2


def bert(size: Size) -> Model:
    """Alpa's BERT, which predicts masked tokens of padded sentences."""
    module = FlaxBertForMaskedLMModule(_transformer(size, token_types=8))
    batch = masked_sentences(size.batch, size.sequence, size.vocabulary)
    inputs = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
    state = initial_state(module, [batch[key] for key in inputs], 0.5)

    def loss(params: Any, state: Any, batch: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, Any]]:
        logits = state.apply_fn(params, *(batch[key] for key in inputs)).logits
        # As in alpa's tests: a position counts if it has a label, and the loss is normalised by how many there are.
        counts = jnp.where(batch["labels"] > 0, 1.0, 0.0)
        labels = jax.nn.one_hot(batch["labels"], size.vocabulary)
        losses = -jnp.sum(labels * jax.nn.log_softmax(logits), axis=-1)
        hits = jnp.argmax(logits, axis=-1) == batch["labels"]
        value = jnp.sum(counts * losses) / jnp.sum(counts)
        return value, {"metrics": {"accuracy": jnp.sum(counts * hits) / jnp.sum(counts)}}

    return Model("bert", state, batch, loss, apply_gradients)


def gpt(size: Size) -> Model:
    """Alpa's GPT; head and embedding are one."""
    return _language_model("gpt", FlaxGPTForLMModule(_transformer(size, token_types=0)), size, 0.5)


def gpt_bf16(size: Size) -> Model:
    """The same computed in bfloat16; parameters, their optimizer's state, the head and the loss are float32."""
    module = FlaxGPTForLMModule(_transformer(size, token_types=0), dtype=jnp.dtype(jnp.bfloat16))
    return replace(_language_model("gpt", module, size, 0.5), rounding=_BF16_ROUNDING)


def moe(size: Size) -> Model:
    """Alpa's mixture of 8 experts in every other layer."""
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


def llama(size: Size, *ways: str) -> Model:
    """LLaMA (`llama.py`), written in any of `LLAMA_WAYS`."""
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


def lstm(size: Size) -> Model:
    """A language model of layers of LSTM (`lstm.py`)."""
    return _language_model("lstm", Lstm(size.vocabulary, size.hidden, size.layers), size, 0.5)


def t5(size: Size) -> Model:
    """An encoder and a decoder (`t5.py`): the target is half as long as the source."""
    module = T5(size.vocabulary, size.hidden, size.layers, size.heads)
    batch = translations(size.batch, size.sequence, size.vocabulary)
    inputs = ("source_ids", "source_mask", "target_ids")
    state = initial_state(module, [batch[key] for key in inputs], 0.1)

    def loss(params: Any, state: Any, batch: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, Any]]:
        return _next_token_loss(state.apply_fn(params, *(batch[key] for key in inputs)), batch["labels"])

    return Model("t5", state, batch, loss, apply_gradients)


def _next_token_loss(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
    """The mean over all positions."""
    accuracy = jnp.mean(jnp.argmax(logits, axis=-1) == labels)
    hot = jax.nn.one_hot(labels, logits.shape[-1])
    return -jnp.mean(jnp.sum(hot * jax.nn.log_softmax(logits), axis=-1)), {"metrics": {"accuracy": accuracy}}


def _transformer(size: Size, token_types: int) -> BertConfig:
    return BertConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.hidden,
        max_position_embeddings=size.sequence,
        type_vocab_size=token_types,
        tie_word_embeddings=True,
    )


def _language_model(name: str, module: nn.Module, size: Size, learning_rate: float) -> Model:
    batch = next_tokens(size.batch, size.sequence, size.vocabulary)
    inputs = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
    state = initial_state(module, [batch[key] for key in inputs], learning_rate)

    def loss(params: Any, state: Any, batch: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, Any]]:
        return _next_token_loss(state.apply_fn(params, *(batch[key] for key in inputs)).logits, batch["labels"])

    return Model(name, state, batch, loss, apply_gradients)
