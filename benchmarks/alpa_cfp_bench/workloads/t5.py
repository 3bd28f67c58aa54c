"""T5 (version 1.1) in flax: an encoder and a decoder with cross attention, RMSNorm, relative positions, gated layers.

Takes sizes; gives a flax module from source tokens, their mask and target tokens to logits. Invariants: padding of the
source is not attended to; a target's token sees only those before it; no layer has biases.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from alpa_cfp_bench.workloads.llama import RmsNorm

_MASKED = -1e9
_BUCKETS, _FARTHEST = 32, 128


def bucket_of(distance: np.ndarray, both_ways: bool) -> np.ndarray:
    """The bucket of each relative position: one a position for near ones, then logarithmically wider ones."""
    count, offset = _BUCKETS, np.zeros_like(distance)
    if both_ways:
        count //= 2
        offset = np.where(distance > 0, count, 0)
        distance = np.abs(distance)
    else:
        distance = np.maximum(-distance, 0)
    near = count // 2
    ratio = np.log(np.maximum(distance, 1) / near) / np.log(_FARTHEST / near)
    far = np.minimum(near + (ratio * (count - near)).astype(int), count - 1)
    return offset + np.where(distance < near, distance, far)


class RelativePositions(nn.Module):
    """A learned number for each head and distance, added to the scores: (heads, sequence, sequence)."""

    heads: int
    both_ways: bool

    @nn.compact
    def __call__(self, sequence: int) -> jax.Array:
        places = np.arange(sequence)
        buckets = bucket_of(places[None, :] - places[:, None], self.both_ways)
        table = nn.Embed(_BUCKETS, self.heads, embedding_init=nn.initializers.normal(0.5), name="table")
        return jnp.transpose(table(jnp.asarray(buckets, jnp.int32)), (2, 0, 1))


class Attention(nn.Module):
    """From (batch, queries, hidden) to (batch, keys, hidden): `bias` is added to the scores, `seen` are attended to."""

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array, memory: jax.Array, bias: jax.Array | float, seen: jax.Array) -> jax.Array:
        hidden = x.shape[-1]
        head_dim = hidden // self.heads

        def heads_of(y: jax.Array, name: str, scale: float) -> jax.Array:
            kernel_init = nn.initializers.normal(scale)
            dense = nn.Dense(hidden, use_bias=False, kernel_init=kernel_init, name=name)
            return dense(y).reshape(*y.shape[:2], self.heads, head_dim)

        # As in T5, scores are not divided by the root of the head's size: queries start that much smaller.
        q = heads_of(x, "q", (hidden * head_dim) ** -0.5)
        k, v = (heads_of(memory, name, hidden**-0.5) for name in ("k", "v"))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias
        weights = jax.nn.softmax(jnp.where(seen, scores, _MASKED), axis=-1)
        attended = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
        return nn.Dense(hidden, use_bias=False, name="o")(attended)


class FeedForward(nn.Module):
    """Gated dense layers, twice as wide in between."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        gate, up = (nn.Dense(2 * x.shape[-1], use_bias=False, name=f"wi_{number}")(x) for number in range(2))
        return nn.Dense(x.shape[-1], use_bias=False, name="wo")(nn.gelu(gate) * up)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each added to its input."""

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array, bias: jax.Array, seen: jax.Array) -> jax.Array:
        y = RmsNorm(name="attention_norm")(x)
        x = x + Attention(self.heads, name="attention")(y, y, bias, seen)
        return x + FeedForward(name="mlp")(RmsNorm(name="mlp_norm")(x))


class DecoderLayer(nn.Module):
    """Self-attention, attention to what the encoder gave, and feed-forward, each added to its input."""

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array, memory: jax.Array, bias: jax.Array, seen: jax.Array) -> jax.Array:
        y = RmsNorm(name="attention_norm")(x)
        causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        x = x + Attention(self.heads, name="attention")(y, y, bias, causal)
        y = RmsNorm(name="cross_norm")(x)
        x = x + Attention(self.heads, name="cross_attention")(y, memory, 0.0, seen)
        return x + FeedForward(name="mlp")(RmsNorm(name="mlp_norm")(x))


class T5(nn.Module):
    """Source tokens and mask (batch, sequence), target tokens (batch, its own sequence) -> logits of the target."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int

    @nn.compact
    def __call__(self, source_ids: jax.Array, source_mask: jax.Array, target_ids: jax.Array) -> jax.Array:
        embedding = nn.Embed(self.vocabulary, self.hidden, embedding_init=nn.initializers.normal(1.0), name="embedding")
        # Before the positions: Alpa takes dim 0 of the first product for the batch, and makes products of embeddings.
        x = embedding(source_ids)
        bias = RelativePositions(self.heads, both_ways=True, name="encoder_positions")(source_ids.shape[1])
        seen = source_mask[:, None, None, :] > 0
        for number in range(self.layers):
            x = EncoderLayer(self.heads, name=f"encoder_{number}")(x, bias, seen)
        memory = RmsNorm(name="encoder_norm")(x)
        x = embedding(target_ids)
        bias = RelativePositions(self.heads, both_ways=False, name="decoder_positions")(target_ids.shape[1])
        for number in range(self.layers):
            x = DecoderLayer(self.heads, name=f"decoder_{number}")(x, memory, bias, seen)
        return nn.Dense(self.vocabulary, use_bias=False, name="head")(RmsNorm(name="decoder_norm")(x))
