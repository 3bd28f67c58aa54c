"""One micro-batch of one pipeline stage, as Megatron splits it, for devices that are not here.

Takes a model, how it is trained, a stage and the devices of one tensor-parallel group; gives the program's bytecode
with its shardings, which XLA partitions. Products are split by columns and then by rows, heads and vocabulary over all
devices of the group (Shoeybi et al., "Megatron-LM", section 3); with `sequence_parallel` what is between them is split
along the sequence (Korthikanti et al., "Reducing Activation Recomputation"). Attention is written out: its scores are
in memory, in float32 where softmax is taken. There is no dropout. Invariant: nothing is allocated; arguments are
shapes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpa_cfp.spmd.compile.devices import Devices
from alpa_cfp.spmd.ir import mlir
from benchmarks.step_numbers import Model, Training

_AXIS = "tensor"
_DTYPES = {"f32": jnp.float32, "f16": jnp.float16, "bf16": jnp.bfloat16}
_MASKED = -1e4
_ADAM = (0.9, 0.95, 1e-8, 1e-4)

Weights = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a model.

    Attributes:
        layers: How many layers.
        first: Whether it has the embedding.
        last: Whether it has the head and the loss.
    """

    layers: int
    first: bool
    last: bool


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight: its shape, and the dim that is split over tensor parallelism, if any."""

    shape: tuple[int, ...]
    split: int | None = None

    def per_device(self, tensor: int) -> int:
        """How many of its numbers a device has."""
        return int(np.prod(self.shape)) // (1 if self.split is None else tensor)


def weights_of(model: Model, stage: Stage, vocabulary: int) -> dict[str, Weight]:
    """The weights of a stage."""
    found = dict[str, Weight]()
    hidden, gpt = model.hidden, model.kind == "gpt"
    if stage.first:
        found["embedding"] = Weight((vocabulary, hidden), 0)
        if gpt:
            found["positions"] = Weight((model.sequence, hidden))
    for number in range(stage.layers):
        found |= {f"{number} {name}": weight for name, weight in _layer_weights(model).items()}
    if stage.last:
        found |= {f"norm {name}": weight for name, weight in _norm(hidden, gpt).items()}
        # GPT has one table for both ends, which a stage that is not first has a copy of.
        if not (gpt and stage.first):
            found["head"] = Weight((vocabulary, hidden), 0)
    return found


def micro_batch_program(
    model: Model, training: Training, stage: Stage, vocabulary: int, samples: int, devices: Devices
) -> bytes:
    """The forward and backward pass of a micro-batch, whose gradients are added to those of the ones before.

    Args:
        model, training, stage: What is computed.
        vocabulary: The rows of the embedding.
        samples: Of a micro-batch.
        devices: Of one tensor-parallel group.
    """
    place = _Place(Mesh(np.array(devices), (_AXIS,)), training.sequence_parallel)
    dtype, summed = _DTYPES[training.element_type], _DTYPES[training.summed_in]
    weights, sums = Weights(), Weights()
    for name, weight in weights_of(model, stage, vocabulary).items():
        spec = [_AXIS if dim == weight.split else None for dim in range(len(weight.shape))]
        weights[name] = place.shape(weight.shape, dtype, *spec)
        sums[name] = place.shape(weight.shape, summed, *spec)
    tokens = place.shape((samples, model.sequence), jnp.int32, None, None)
    activations = place.shape((samples, model.sequence, model.hidden), dtype, None, place.between, None)

    def micro_batch(weights: Weights, sums: Weights, inputs: Any, labels: Any) -> tuple[Any, ...]:
        def forward(weights: Weights, inputs: Any) -> Any:
            x = _embedded(weights, inputs, place) if stage.first else inputs
            for number in range(stage.layers):
                own = {name: weights[f"{number} {name}"] for name in _layer_weights(model)}
                layer: Callable[..., Any] = lambda own, x: _layer(model, own, x, place)  # noqa: E731
                x = (jax.checkpoint(layer) if training.remat else layer)(own, x)
            return _loss(weights, x, labels, place) if stage.last else x

        if stage.first:
            out, pull = jax.vjp(lambda weights: forward(weights, inputs), weights)
        else:
            out, pull = jax.vjp(forward, weights, inputs)
        grads, *before = pull(jnp.ones_like(out) if stage.last else labels)
        added = {name: sums[name] + grads[name].astype(summed) for name in sums}
        return (added, out, *before)

    arguments = (weights, sums, tokens if stage.first else activations, tokens if stage.last else activations)
    exact = "highest" if training.element_type == "f32" else "default"
    shardings = {name: each.sharding for name, each in sums.items()}
    results = (shardings, None) if stage.first else (shardings, None, activations.sharding)
    with jax.default_matmul_precision(exact):
        lowered = jax.jit(micro_batch, donate_argnums=1, out_shardings=results).lower(*arguments)
    return mlir.to_bytecode(lowered.compiler_ir("stablehlo"))


def update_program(numbers: int, training: Training, devices: Devices) -> bytes:
    """Adam over all numbers of one device, whose gradients are clipped by their norm.

    Args:
        numbers: How many.
        training: What the weights and the gradients are; others are float32.
        devices: One device.
    """
    place = _Place(Mesh(np.array(devices), (_AXIS,)), False)
    dtype, summed = _DTYPES[training.element_type], _DTYPES[training.summed_in]
    shape = (-(-numbers // 1024), 1024)
    first, second, epsilon, rate = _ADAM

    def update(master: Any, mean: Any, square: Any, grads: Any) -> tuple[Any, ...]:
        grads = grads.astype(jnp.float32)
        grads = grads * jnp.minimum(1.0, jax.lax.rsqrt(jnp.sum(grads**2)))
        mean, square = first * mean + (1 - first) * grads, second * square + (1 - second) * grads**2
        master = master - rate * mean / (jnp.sqrt(square) + epsilon)
        return (master, mean, square, *([] if dtype == jnp.float32 else [master.astype(dtype)]))

    states = [place.shape(shape, jnp.float32, None, None)] * 3
    lowered = jax.jit(update, donate_argnums=(0, 1, 2)).lower(*states, place.shape(shape, summed, None, None))
    return mlir.to_bytecode(lowered.compiler_ir("stablehlo"))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where values are: the mesh, and whether what is between products is split along the sequence."""

    mesh: Mesh
    sequence_parallel: bool

    @property
    def between(self) -> str | None:
        return _AXIS if self.sequence_parallel else None

    def shape(self, shape: tuple[int, ...], dtype: Any, *spec: str | None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self._sharding(spec))

    def at(self, value: jax.Array, *spec: str | None) -> jax.Array:
        return jax.lax.with_sharding_constraint(value, self._sharding(spec))

    def residual(self, value: jax.Array) -> jax.Array:
        return self.at(value, None, self.between, None)

    def _sharding(self, spec: tuple[str | None, ...]) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(*spec))


def _norm(hidden: int, gpt: bool) -> dict[str, Weight]:
    return {name: Weight((hidden,)) for name in (("scale", "bias") if gpt else ("scale",))}


def _layer_weights(model: Model) -> dict[str, Weight]:
    hidden, groups, head = model.hidden, model.kv_heads, model.hidden // model.heads
    gpt = model.kind == "gpt"
    # Of each group of heads the queries, the keys and the values, in one product as Megatron has it.
    together = model.heads // groups + 2
    found = {f"{place} {name}": each for place in ("in", "out") for name, each in _norm(hidden, gpt).items()}
    found |= {
        "qkv": Weight((hidden, groups, together, head), 1),
        "o": Weight((groups, together - 2, head, hidden), 0),
        "up": Weight((hidden, 1 if gpt else 2, model.intermediate), 2),
        "down": Weight((model.intermediate, hidden), 0),
    }
    if gpt:
        found |= {"qkv bias": Weight((groups, together, head), 0), "up bias": Weight((1, model.intermediate), 1)}
        found |= {"o bias": Weight((hidden,)), "down bias": Weight((hidden,))}
    return found


def _normed(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    exact = x.astype(jnp.float32)
    if f"{name} bias" in weights:
        exact = exact - jnp.mean(exact, axis=-1, keepdims=True)
    exact = exact * jax.lax.rsqrt(jnp.mean(exact**2, axis=-1, keepdims=True) + 1e-5) * weights[f"{name} scale"]
    return (exact + weights.get(f"{name} bias", 0.0)).astype(x.dtype)


def _embedded(weights: Weights, tokens: jax.Array, place: _Place) -> jax.Array:
    x = jnp.take(weights["embedding"], tokens, axis=0, mode="clip")
    return place.residual(x + weights["positions"] if "positions" in weights else x)


def _layer(model: Model, weights: Weights, x: jax.Array, place: _Place) -> jax.Array:
    y = place.at(_normed(weights, "in", x), None, None, None)
    qkv = place.at(jnp.einsum("bsh,hgrd->bsgrd", y, weights["qkv"]), None, None, _AXIS, None, None)
    if model.kind == "gpt":
        qkv = qkv + weights["qkv bias"]
    attended = _attention(qkv, rotary=model.kind == "llama")
    x = x + place.residual(jnp.einsum("bsgrd,grdh->bsh", attended, weights["o"])) + weights.get("o bias", 0)
    y = place.at(_normed(weights, "out", x), None, None, None)
    up = place.at(jnp.einsum("bsh,hni->bsni", y, weights["up"]), None, None, None, _AXIS)
    if model.kind == "gpt":
        inner = jax.nn.gelu(up[:, :, 0] + weights["up bias"][0])
    else:
        inner = jax.nn.silu(up[:, :, 0]) * up[:, :, 1]
    return x + place.residual(inner @ weights["down"]) + weights.get("down bias", 0)


def _attention(qkv: jax.Array, *, rotary: bool) -> jax.Array:
    """(batch, sequence, groups, queries + 2, head dim) -> the same of the queries."""
    q, k, v = qkv[:, :, :, :-2], qkv[:, :, :, -2:-1], qkv[:, :, :, -1]
    if rotary:
        q, k = _rotated(q), _rotated(k)
    scores = jnp.einsum("bsgrd,btgd->bgrst", q, k[:, :, :, 0]).astype(jnp.float32) / q.shape[-1] ** 0.5
    positions = jnp.arange(q.shape[1])
    scores = jnp.where(positions[:, None] >= positions[None], scores, _MASKED)
    return jnp.einsum("bgrst,btgd->bsgrd", jax.nn.softmax(scores, axis=-1).astype(v.dtype), v)


def _rotated(x: jax.Array) -> jax.Array:
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    cos, sin = (each.astype(x.dtype)[:, None, None] for each in (jnp.cos(angles), jnp.sin(angles)))
    left, right = x[..., :half], x[..., half:]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


def _loss(weights: Weights, x: jax.Array, labels: jax.Array, place: _Place) -> jax.Array:
    y = place.at(_normed(weights, "norm", x), None, None, None)
    table = weights["head"] if "head" in weights else weights["embedding"]
    logits = place.at(jnp.einsum("bsh,vh->bsv", y, table), None, None, _AXIS).astype(jnp.float32)
    # A sum over the vocabulary, which may be split, in place of a look-up.
    hit = jnp.arange(logits.shape[-1]) == labels[..., None]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - jnp.sum(jnp.where(hit, logits, 0.0), axis=-1))
