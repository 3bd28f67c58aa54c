"""A GPT over bytes in flax linen: pre-norm layers, causal attention with rotary positions.

Takes bytes, gives for each the logits of the next one. Nothing here knows of devices: how the model is split is decided
by the method that runs its training step.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

VOCABULARY = 256


@dataclass(frozen=True)
class Size:
    """How large the model is; `hidden` is divisible by `heads`, and what a head has of it by 2."""

    layers: int = 4
    hidden: int = 128
    heads: int = 4
    length: int = 128


class Layer(nn.Module):
    """Attention over what came before, then an MLP, each added to its input: float[batch, length, hidden]."""

    size: Size

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        size, length = self.size, x.shape[1]
        width = size.hidden // size.heads
        # What is added to x starts small, so that the bytes themselves can be read in the last layer too.
        small = nn.initializers.normal(0.02)

        def heads(name: str) -> jax.Array:
            return nn.DenseGeneral((size.heads, width), name=name)(normed)

        normed = nn.LayerNorm(name="norm_attention")(x)
        scores = jnp.einsum("bqhw,bkhw->bhqk", rotated(heads("query")), rotated(heads("key"))) / np.sqrt(width)
        causal = jnp.tril(jnp.ones((length, length), bool))
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
        mixed = jnp.einsum("bhqk,bkhw->bqhw", weights, heads("value"))
        x = x + nn.DenseGeneral(size.hidden, axis=(-2, -1), kernel_init=small, name="out")(mixed)
        inner = nn.gelu(nn.Dense(4 * size.hidden, name="up")(nn.LayerNorm(name="norm_mlp")(x)))
        return x + nn.Dense(size.hidden, kernel_init=small, name="down")(inner)


class GPT(nn.Module):
    """Bytes, int32[batch, length], to logits of the next byte, float[batch, length, 256]."""

    size: Size

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        x = nn.Embed(VOCABULARY, self.size.hidden, embedding_init=nn.initializers.normal(0.5), name="bytes")(inputs)
        for i in range(self.size.layers):
            x = Layer(self.size, name=f"layer_{i}")(x)
        head = nn.Dense(VOCABULARY, kernel_init=nn.initializers.normal(0.02), name="head")
        return head(nn.LayerNorm(name="norm")(x))


def rotated(x: jax.Array) -> jax.Array:
    """Queries or keys, float[batch, length, heads, width], turned by their position, so that products tell distances.

    Source: RoFormer, arXiv 2104.09864.
    """
    length, half = x.shape[1], x.shape[-1] // 2
    angles = np.outer(np.arange(length), 10_000.0 ** (-np.arange(half) / half))[:, None, :]
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


def mean_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean cross entropy, in nats a byte."""
    wanted = jax.nn.one_hot(labels, VOCABULARY)
    return -jnp.mean(jnp.sum(wanted * jax.nn.log_softmax(logits), axis=-1))
