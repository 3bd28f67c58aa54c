"""Whole small training programs: every sharding of the parameters from a small set equals the serial run."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from alpa_cfp.spmd.partition import partition
from unit.alpa_cfp.spmd.helpers import (
    MESH_2X2,
    Case,
    annotate,
    assert_parts_equal,
    run,
    split,
)
from unit.alpa_cfp.spmd.partition.op_cases import conv, normal

pytestmark = pytest.mark.slow


def _gradients(loss: Callable[..., jax.Array], parameters: int) -> Callable[..., Any]:
    return jax.value_and_grad(loss, argnums=tuple(range(parameters)))


def _mlp(up: jax.Array, down: jax.Array, x: jax.Array) -> jax.Array:
    return ((jax.nn.gelu(x @ up, approximate=False) @ down - x) ** 2).mean()


def _attention(qkv: jax.Array, out: jax.Array, x: jax.Array) -> jax.Array:
    q, k, v = jnp.einsum("bsd,dthe->tbshe", x, qkv)
    mask = jnp.tril(jnp.ones((4, 4), bool))
    scores = jnp.where(mask, jnp.einsum("bqhe,bkhe->bhqk", q, k) / 2, -1e9)
    return ((jnp.einsum("bhqk,bkhe,hed->bqd", jax.nn.softmax(scores), v, out) + x) ** 2).mean()


def _moe(gate: jax.Array, experts: jax.Array, x: jax.Array) -> jax.Array:
    probabilities = jax.nn.softmax(x @ gate)
    chosen = jax.nn.one_hot(jnp.argmax(probabilities, -1), 4)
    dispatched = jnp.einsum("bd,be->ebd", x, chosen)
    outputs = jnp.tanh(jnp.einsum("ebd,edf->ebf", dispatched, experts))
    return (jnp.einsum("ebf,be->bf", outputs, chosen * probabilities) ** 2).mean()


def _conv_net(kernel: jax.Array, scale: jax.Array, image: jax.Array) -> jax.Array:
    y = conv(image, kernel)
    mean, variance = y.mean((0, 1, 2)), y.var((0, 1, 2))
    y = (y - mean) * jax.lax.rsqrt(variance + 1e-5) * scale
    return (jax.nn.relu(y) ** 3).mean()


MODELS: dict[str, tuple[Case, list[list[tuple[str, ...]]]]] = {
    "MLP": (
        Case(_gradients(_mlp, 2), (normal(8, 16), normal(16, 8), normal(8, 8))),
        [[("", ""), ("", "y"), ("y", "")], [("", ""), ("y", ""), ("x", "y")], [("x", ""), ("", "")]],
    ),
    "attention": (
        Case(_gradients(_attention, 2), (normal(8, 3, 2, 4), normal(2, 4, 8), normal(4, 4, 8))),
        [
            [("", "", "", ""), ("", "", "y", "")],
            [("", "", ""), ("y", "", "")],
            [("x", "", ""), ("xy", "", "")],
        ],
    ),
    "mixture of experts": (
        Case(_gradients(_moe, 2), (normal(8, 4), normal(4, 8, 8), normal(8, 8))),
        [[("", ""), ("x", "")], [("", "", ""), ("y", "", ""), ("", "", "y")], [("x", ""), ("xy", "")]],
    ),
    "convolution with batch norm": (
        Case(_gradients(_conv_net, 2), (normal(3, 3, 4, 8), normal(8), normal(8, 5, 5, 4))),
        [[("", "", "", ""), ("", "", "", "y")], [("",), ("y",)], [("x", "", "", ""), ("xy", "", "", "")]],
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients_equal_the_serial_run_for_every_choice_of_shardings(name):
    case, choices = MODELS[name]
    for chosen in itertools.product(*choices):
        shardings = [split(MESH_2X2, *dims) for dims in chosen]
        # A gradient has its parameter's sharding; the loss is whole everywhere.
        module = annotate(case.module(), MESH_2X2, shardings, [split(MESH_2X2), *shardings[:-1]])
        program = partition(module)
        assert_parts_equal(run(module, program, case.arguments), case.expected(), tolerance=1e-4)


@pytest.mark.parametrize("name", ["MLP", "convolution with batch norm"])
def test_data_parallel_and_column_parallel_training_stays_with_shardys_partitioner(name):
    case, choices = MODELS[name]
    shardings = [split(MESH_2X2, *dims[0]) for dims in choices]
    assert partition(annotate(case.module(), MESH_2X2, shardings)).partitioner == "shardy"
