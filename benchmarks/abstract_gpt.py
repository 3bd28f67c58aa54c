"""GPT at the sizes of Alpa's own benchmark, as a program of which only shapes exist: no device, no array.

Takes the sizes; gives the jaxpr of a whole training step as in Alpa's `benchmark_one_case_gpt_bert.py` (forward,
backward, AdamW with a float32 master copy, float16 otherwise, no rematerialisation) and which arguments are donated.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from alpa.model.bert_model import BertConfig
from alpa.model.gpt_model import FlaxGPTForLMModule
from alpa.model.model_util import TrainState
from alpa.util import jaxpr_to_hlo


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Those of Alpa's GPT-2.6B unless told."""

    layers: int
    hidden: int = 2560
    heads: int = 32
    sequence: int = 1024
    vocabulary: int = 51200
    micro_batch: int = 8


def training_step(sizes: Sizes) -> Any:
    """The training step, lowered: alpa's `WrappedHlo`."""
    return jaxpr_to_hlo("train_step", *_jaxpr_and_donation(sizes))


def _jaxpr_and_donation(sizes: Sizes) -> tuple[Any, list[bool]]:
    """The training step, and which of its arguments are donated."""
    config = BertConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        num_attention_heads=sizes.heads,
        intermediate_size=4 * sizes.hidden,
        num_hidden_layers=sizes.layers,
        type_vocab_size=0,
        tie_word_embeddings=False,
    )
    model = FlaxGPTForLMModule(config, dtype=jnp.dtype(jnp.float16))
    inputs = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
    batch = {name: jax.ShapeDtypeStruct((sizes.micro_batch, sizes.sequence), jnp.int32) for name in (*inputs, "labels")}
    key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    params = jax.eval_shape(model.init, key, *(batch[name] for name in inputs))

    def decays(params: Any) -> Any:
        return jax.tree.map(lambda param: param.ndim > 1, params)

    state = TrainState.create_aval(
        apply_fn=model.apply,
        params=params,
        tx=optax.adamw(1e-2, mask=decays),
        use_master_copy=True,
        dynamic_scale=None,
    )

    def step(state: Any, batch: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            logits = state.apply_fn(params, *(batch[name] for name in inputs), deterministic=True)[0]
            counts = jnp.where(batch["labels"] > 0, 1.0, 0.0)
            labels = jax.nn.one_hot(batch["labels"], logits.shape[-1])
            losses = -jnp.sum(labels * jax.nn.log_softmax(logits, axis=-1), axis=-1)
            return (counts * losses).sum() / counts.sum()

        return state.apply_gradients(grads=jax.grad(loss)(state.params))

    donated = [True] * len(jax.tree.leaves(state)) + [False] * len(jax.tree.leaves(batch))
    return jax.make_jaxpr(step)(state, batch), donated
