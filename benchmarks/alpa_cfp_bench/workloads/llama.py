"""LLaMA in flax: RMSNorm, rotary positions, grouped-query attention, SwiGLU, a head of its own.

Takes sizes and in which way it is written; gives a flax module with the call of alpa's language models. Activations
have logical names where those of MaxText have some (MaxText/layers/llama2.py, attentions.py, linears.py), by which flax
constrains them in a context of rules and a mesh (`shardings.LOGICAL_AXIS_RULES`), and nowhere else. Invariants: all
ways compute the same function, up to rounding; only `scan` keeps the layers' parameters in another form, stacked.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

_MASKED = -1e9
# flax says that axes are numbers, and takes this in place of one.
_BROADCAST: Any = nn.broadcast
# The logical names of dims of activations.
RESIDUAL = ("activation_batch", "activation_length", "activation_embed")
HEADS = ("activation_batch", "activation_length", "activation_heads", "activation_kv")
MLP = ("activation_batch", "activation_length", "activation_mlp")
LOGITS = ("activation_batch", "activation_length", "activation_vocab")


class Output(NamedTuple):
    """The output of the model, with the field name of alpa's language models."""

    logits: jax.Array


def named(x: jax.Array, names: tuple[str, ...]) -> jax.Array:
    """An activation whose dims have logical names: itself, but for the sharding that rules give it."""
    return nn.with_logical_constraint(x, names)


class RmsNorm(nn.Module):
    """Root-mean-square normalisation over the last dim, in float32 whatever the input is."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        exact = x.astype(jnp.float32)
        return (exact * jax.lax.rsqrt(jnp.mean(exact**2, axis=-1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def rotate(x: jax.Array, position_ids: jax.Array) -> jax.Array:
    """Turn each pair of dims of (batch, sequence, heads, head dim) by an angle that grows with the position."""
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-jnp.arange(half) / half)
    angles = position_ids[:, :, None, None] * frequencies
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    left, right = x[..., :half], x[..., half:]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


class LlamaLayer(nn.Module):
    """One decoder layer: (batch, sequence, hidden) -> the same."""

    heads: int
    kv_heads: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array, position_ids: jax.Array) -> jax.Array:
        hidden = x.shape[-1]
        y = named(RmsNorm(name="attention_norm")(x), RESIDUAL)
        x = x + named(self._dense(hidden, "o")(self._attended(y, position_ids)), RESIDUAL)
        y = named(RmsNorm(name="mlp_norm")(x), RESIDUAL)
        gated = named(nn.silu(self._dense(3 * hidden, "gate")(y)) * self._dense(3 * hidden, "up")(y), MLP)
        return named(x + named(self._dense(hidden, "down")(gated), RESIDUAL), RESIDUAL)

    def _attended(self, y: jax.Array, position_ids: jax.Array) -> jax.Array:
        batch, sequence, hidden = y.shape
        head_dim = hidden // self.heads
        q = self._dense(hidden, "q")(y).reshape(batch, sequence, self.heads, head_dim)
        k = self._dense(self.kv_heads * head_dim, "k")(y).reshape(batch, sequence, self.kv_heads, head_dim)
        v = self._dense(self.kv_heads * head_dim, "v")(y).reshape(batch, sequence, self.kv_heads, head_dim)
        q, k, v = (named(each, HEADS) for each in (rotate(q, position_ids), rotate(k, position_ids), v))
        k, v = (jnp.repeat(each, self.heads // self.kv_heads, axis=2) for each in (k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / head_dim**0.5
        causal = jnp.tril(jnp.ones((sequence, sequence), bool))
        weights = jax.nn.softmax(jnp.where(causal, scores.astype(jnp.float32), _MASKED), axis=-1).astype(y.dtype)
        return named(jnp.einsum("bhqk,bkhd->bqhd", weights, v), HEADS).reshape(batch, sequence, hidden)

    def _dense(self, features: int, name: str) -> nn.Dense:
        return nn.Dense(features, use_bias=False, dtype=self.dtype, name=name)


class _ScannedLayer(nn.Module):
    """A layer in the form that `nn.scan` takes: it carries the activations."""

    layer: type[nn.Module]
    heads: int
    kv_heads: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array, position_ids: jax.Array) -> tuple[jax.Array, None]:
        return self.layer(self.heads, self.kv_heads, self.dtype, name="layer")(x, position_ids), None


class Llama(nn.Module):
    """The language model: token ids and positions (batch, sequence) -> logits over the vocabulary.

    Attributes:
        remat: Whether each layer is computed again in the backward pass.
        scan: Whether the layers are one `lax.scan` over stacked parameters.
        tied: Whether the head is the embedding.
        dtype: What is computed in; parameters and the loss are float32.
    """

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    remat: bool = False
    scan: bool = False
    tied: bool = False
    dtype: jnp.dtype = jnp.dtype(jnp.float32)

    @nn.compact
    def __call__(
        self, input_ids: jax.Array, attention_mask: jax.Array, token_type_ids: jax.Array, position_ids: jax.Array
    ) -> Output:
        del attention_mask, token_type_ids  # all tokens count, and they are of one type
        embedding = nn.Embed(self.vocabulary, self.hidden, dtype=self.dtype, name="embedding")
        x = named(embedding(input_ids), RESIDUAL)
        layer = nn.remat(LlamaLayer) if self.remat else LlamaLayer
        sizes = (self.heads, self.kv_heads, self.dtype)
        if self.scan:
            scanned = nn.scan(
                _ScannedLayer,
                variable_axes={"params": 0},
                split_rngs={"params": True},
                in_axes=_BROADCAST,
                length=self.layers,
            )
            x, _ = scanned(layer, *sizes, name="layers")(x, position_ids)
        else:
            for number in range(self.layers):
                x = layer(*sizes, name=f"layer_{number}")(x, position_ids)
        x = RmsNorm(name="norm")(x)
        if self.tied:
            logits = embedding.attend(x)
        else:
            logits = nn.Dense(self.vocabulary, use_bias=False, dtype=self.dtype, name="head")(x)
        return Output(named(logits, LOGITS).astype(jnp.float32))
