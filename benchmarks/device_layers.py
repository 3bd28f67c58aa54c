"""Parts of models in plain JAX for one device: a transformer's layer and its halves, a loss, a residual block, Adam.

Takes sizes; gives functions with the shapes of their arguments, as `device_programs` names them. Parameters are
float32, products are bfloat16, norms and softmax float32. Invariant: nothing here needs alpa, flax or optax, so a
program is what jax alone makes of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from alpa_cfp_bench.workloads.published import Case

Params = dict[str, jax.Array]
Shapes = dict[str, tuple[int, ...]]
Traced = tuple[Callable[..., Any], tuple[Any, ...]]

_MASKED = -1e9
_STEP_SIZE, _DECAY, _SQUARE_DECAY, _EPSILON = 1e-3, 0.9, 0.95, 1e-8


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a transformer's layer.

    Attributes:
        hidden, heads, intermediate, sequence: As papers name them.
        gated: Its MLP has a gate, as LLaMA's.
        causal: No token attends to a later one.
    """

    hidden: int
    heads: int
    intermediate: int
    sequence: int
    gated: bool = False
    causal: bool = True

    @classmethod
    def of(cls, case: Case, *, gated: bool = False) -> "Sizes":
        """Those of a case of the suites."""
        return cls(case.hidden, case.heads, case.intermediate, case.sequence, gated)


Part = Callable[[Params, jax.Array, Sizes], jax.Array]


def norm(params: Params, x: jax.Array, sizes: Sizes, name: str = "norm") -> jax.Array:
    """Layer norm over the last dim."""
    del sizes
    exact = x.astype(jnp.float32)
    centred = exact - exact.mean(axis=-1, keepdims=True)
    scaled = centred * lax.rsqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    return (scaled * params[f"{name}_scale"] + params[f"{name}_bias"]).astype(x.dtype)


def attention(params: Params, x: jax.Array, sizes: Sizes) -> jax.Array:
    """Attention of all heads, (batch, sequence, hidden) -> the same."""
    batch, sequence, hidden = x.shape
    joint = x @ params["qkv"].astype(x.dtype)
    q, k, v = jnp.split(joint.reshape(batch, sequence, sizes.heads, -1), 3, axis=-1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / q.shape[-1] ** 0.5
    if sizes.causal:
        scores = jnp.where(jnp.tril(jnp.ones((sequence, sequence), bool)), scores, _MASKED)
    weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, sequence, hidden)
    return mixed @ params["out"].astype(x.dtype)


def mlp(params: Params, x: jax.Array, sizes: Sizes) -> jax.Array:
    """The MLP of a layer, (batch, sequence, hidden) -> the same."""
    up = x @ params["up"].astype(x.dtype)
    inner = jax.nn.silu(x @ params["gate"].astype(x.dtype)) * up if sizes.gated else jax.nn.gelu(up)
    return inner @ params["down"].astype(x.dtype)


def layer(params: Params, x: jax.Array, sizes: Sizes) -> jax.Array:
    """A layer with its norms before attention and MLP."""
    x = x + attention(params, norm(params, x, sizes, "attention_norm"), sizes)
    return x + mlp(params, norm(params, x, sizes, "mlp_norm"), sizes)


def _shapes(part: Part, sizes: Sizes) -> Shapes:
    hidden, inner = sizes.hidden, sizes.intermediate
    of_attention: Shapes = {"qkv": (hidden, 3 * hidden), "out": (hidden, hidden)}
    of_mlp: Shapes = {"up": (hidden, inner), "down": (inner, hidden)}
    if sizes.gated:
        of_mlp["gate"] = (hidden, inner)
    names = {norm: ("norm",), layer: ("attention_norm", "mlp_norm")}.get(part, ())
    of_norms: Shapes = {f"{name}_{kind}": (hidden,) for name in names for kind in ("scale", "bias")}
    return of_norms | (of_attention if part in (attention, layer) else {}) | (of_mlp if part in (mlp, layer) else {})


def program(part: Part, way: str, sizes: Sizes, batch: int) -> Traced:
    """A part of a layer as a program.

    Args:
        part: `layer`, `attention`, `mlp` or `norm`.
        way: "forward"; "gradient", of parameters and input; or "step", which also has Adam's update.
        sizes: Of the layer.
        batch: Samples.
    """
    params = _abstract(_shapes(part, sizes))
    x = jax.ShapeDtypeStruct((batch, sizes.sequence, sizes.hidden), jnp.bfloat16)
    if way == "forward":
        return lambda params, x: part(params, x, sizes), (params, x)

    def gradients(params: Params, x: jax.Array, cotangent: jax.Array) -> tuple[Params, jax.Array]:
        # What comes from the layers behind is an argument: there is no loss that could be simplified away.
        return jax.vjp(lambda params, x: part(params, x, sizes), params, x)[1](cotangent)

    if way == "gradient":
        return gradients, (params, x, x)

    def step(params: Params, mean: Params, square: Params, x: jax.Array, cotangent: jax.Array) -> Any:
        of_params, of_x = gradients(params, x, cotangent)
        return _adam(params, mean, square, of_params), of_x

    return step, (params, params, params, x, x)


def embedding_and_loss(tokens: int, hidden: int, vocabulary: int) -> Traced:
    """The first and the last part of a language model: its table, its head and the loss, with gradients."""

    def loss(params: Params, ids: jax.Array, labels: jax.Array) -> jax.Array:
        x = params["table"].astype(jnp.bfloat16)[ids]
        logits = (x @ params["head"].astype(jnp.bfloat16)).astype(jnp.float32)
        chosen = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)

    params = _abstract({"table": (vocabulary, hidden), "head": (hidden, vocabulary)})
    ids = jax.ShapeDtypeStruct((tokens,), jnp.int32)
    return jax.value_and_grad(loss), (params, ids, ids)


def residual_block(batch: int, side: int, channels: int, dtype: jnp.dtype) -> Traced:
    """A bottleneck block of a Wide-ResNet whose inner convolution is twice as wide, with gradients.

    Args:
        batch: Images.
        side: Pixels of a side.
        channels: As ResNet counts them: the block has four times as many at its ends.
        dtype: Of images and products.
    """
    outer, inner = 4 * channels, 2 * channels

    def block(params: Params, x: jax.Array) -> jax.Array:
        y = x
        for number in range(3):
            y = _convolve(y, params[f"kernel_{number}"])
            y = _batch_norm(y, params[f"scale_{number}"], params[f"bias_{number}"])
            y = jax.nn.relu(y) if number < 2 else jax.nn.relu(y + x)
        return y

    def gradients(params: Params, x: jax.Array, cotangent: jax.Array) -> Any:
        return jax.vjp(block, params, x)[1](cotangent)

    shapes: Shapes = {"kernel_0": (1, 1, outer, inner), "kernel_1": (3, 3, inner, inner)}
    shapes |= {"kernel_2": (1, 1, inner, outer)}
    for number, width in enumerate((inner, inner, outer)):
        shapes |= {f"scale_{number}": (width,), f"bias_{number}": (width,)}
    x = jax.ShapeDtypeStruct((batch, side, side, outer), dtype)
    return gradients, (_abstract(shapes), x, x)


def _convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
    dims = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel.astype(x.dtype), (1, 1), "SAME", dimension_numbers=dims)


def _batch_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    exact = x.astype(jnp.float32)
    mean = exact.mean(axis=(0, 1, 2))
    variance = (exact**2).mean(axis=(0, 1, 2)) - mean**2
    return ((exact - mean) * (lax.rsqrt(variance + 1e-5) * scale) + bias).astype(x.dtype)


def update_alone(parameters: int) -> Traced:
    """Adam's update of so many numbers."""
    arrays = _abstract({f"part_{number}": (parameters // 4096 // 4, 4096) for number in range(4)})
    return _adam, (arrays,) * 4


def _adam(params: Params, mean: Params, square: Params, grads: Params) -> tuple[Params, Params, Params]:
    mean = jax.tree.map(lambda old, grad: _DECAY * old + (1 - _DECAY) * grad, mean, grads)
    square = jax.tree.map(lambda old, grad: _SQUARE_DECAY * old + (1 - _SQUARE_DECAY) * grad**2, square, grads)
    new = jax.tree.map(lambda p, m, s: p - _STEP_SIZE * m / (jnp.sqrt(s) + _EPSILON), params, mean, square)
    return new, mean, square


def _abstract(shapes: Shapes) -> Any:
    return {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
