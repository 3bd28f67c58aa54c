"""A vision transformer in flax: patches, learned positions, pre-norm encoder layers, the mean over patches.

Takes sizes; gives a flax module from images (batch, height, width, channels) to logits. Invariant: attention is
flax's own, whose kernels have a dim for the heads.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

PATCH = 4


class VitLayer(nn.Module):
    """One encoder layer: (batch, patches, hidden) -> the same."""

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = nn.LayerNorm(name="attention_norm")(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=self.heads, name="attention")(y)
        y = nn.LayerNorm(name="mlp_norm")(x)
        y = nn.gelu(nn.Dense(4 * x.shape[-1], name="wi")(y))
        return x + nn.Dense(x.shape[-1], name="wo")(y)


class Vit(nn.Module):
    """The classifier; the sides of an image are multiples of `PATCH`."""

    classes: int
    hidden: int
    layers: int
    heads: int

    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        x = nn.Conv(self.hidden, (PATCH, PATCH), strides=(PATCH, PATCH), padding="VALID", name="patches")(image)
        x = x.reshape(x.shape[0], -1, self.hidden)
        x = x + self.param("positions", nn.initializers.normal(0.02), (1, x.shape[1], self.hidden))
        for number in range(self.layers):
            x = VitLayer(self.heads, name=f"layer_{number}")(x)
        x = jnp.mean(nn.LayerNorm(name="norm")(x), axis=1)
        return nn.Dense(self.classes, name="head")(x)
