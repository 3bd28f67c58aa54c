"""A LLaMA-like decoder in plain JAX: RMSNorm, rotary positions, grouped-query attention, SwiGLU, untied head.

Takes sizes; gives a training step by SGD as StableHLO, with each layer written out, recomputed in the backward pass,
or as one `lax.scan`. Nothing is ever computed: the tests only lower it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class LlamaSize:
    """Sizes of a model and its batch."""

    layers: int = 2
    batch: int = 8
    sequence: int = 16
    hidden: int = 64
    heads: int = 8
    kv_heads: int = 4
    vocabulary: int = 128

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


def layer_shapes(size: LlamaSize) -> dict[str, tuple[int, ...]]:
    """The shapes of one layer's parameters."""
    kv_width = size.kv_heads * size.head_dim
    return {
        "attention_norm": (size.hidden,),
        "q": (size.hidden, size.hidden),
        "k": (size.hidden, kv_width),
        "v": (size.hidden, kv_width),
        "o": (size.hidden, size.hidden),
        "mlp_norm": (size.hidden,),
        "gate": (size.hidden, 3 * size.hidden),
        "up": (size.hidden, 3 * size.hidden),
        "down": (3 * size.hidden, size.hidden),
    }


def parameters(size: LlamaSize, *, stacked: bool = False) -> dict[str, Any]:
    """Abstract parameters: a list of layers, or with `stacked` one layer with a leading dim of all layers."""

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    shapes = layer_shapes(size)
    layers: Any
    if stacked:
        layers = {name: array(size.layers, *shape) for name, shape in shapes.items()}
    else:
        layers = [{name: array(*shape) for name, shape in shapes.items()} for _ in range(size.layers)]
    return {
        "embedding": array(size.vocabulary, size.hidden),
        "layers": layers,
        "norm": array(size.hidden),
        "head": array(size.hidden, size.vocabulary),
    }


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def _rotate(x: jax.Array) -> jax.Array:
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-jnp.arange(half) / half)
    angles = jnp.arange(x.shape[1])[:, None] * frequencies
    cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
    left, right = x[..., :half], x[..., half:]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


def layer(size: LlamaSize, x: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
    """One decoder layer: (batch, sequence, hidden) -> the same."""
    y = _norm(x, weights["attention_norm"])
    q = (y @ weights["q"]).reshape(*x.shape[:2], size.heads, size.head_dim)
    k = (y @ weights["k"]).reshape(*x.shape[:2], size.kv_heads, size.head_dim)
    v = (y @ weights["v"]).reshape(*x.shape[:2], size.kv_heads, size.head_dim)
    q, k = _rotate(q), _rotate(k)
    k, v = (jnp.repeat(each, size.heads // size.kv_heads, axis=2) for each in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / size.head_dim**0.5
    causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    scores = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    attended = jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(x.shape)
    x = x + attended @ weights["o"]
    y = _norm(x, weights["mlp_norm"])
    return x + (jax.nn.silu(y @ weights["gate"]) * (y @ weights["up"])) @ weights["down"]


def lower(size: LlamaSize, *, remat: bool = False, scan: bool = False) -> str:
    """The StableHLO text of a training step by SGD."""
    block: Callable[..., jax.Array] = lambda x, weights: layer(size, x, weights)  # noqa: E731
    if remat:
        block = jax.checkpoint(block)

    def loss(params: dict[str, Any], tokens: jax.Array) -> jax.Array:
        x = params["embedding"][tokens]
        if scan:
            x, _ = jax.lax.scan(lambda x, weights: (block(x, weights), None), x, params["layers"])
        else:
            for weights in params["layers"]:
                x = block(x, weights)
        logits = jax.nn.log_softmax(_norm(x, params["norm"]) @ params["head"])
        return -jnp.mean(jnp.take_along_axis(logits[:, :-1], tokens[:, 1:, None], axis=-1))

    def step(params: dict[str, Any], tokens: jax.Array) -> tuple[dict[str, Any], jax.Array]:
        value, grads = jax.value_and_grad(loss)(params, tokens)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    tokens = jax.ShapeDtypeStruct((size.batch, size.sequence), jnp.int32)
    return jax.jit(step).trace(parameters(size, stacked=scan), tokens).lower().as_text()
