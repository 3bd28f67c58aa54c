"""The programs that the tests of the analysis read: each is lowered once, and never compiled.

Takes a function and example arguments, or the name of a model; gives bytecode as the seam hands it over, and blocks.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from alpa_cfp.analysis.blocks import Blocks, find_blocks
from alpa_cfp.analysis.graph import Graph
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.sizes import TINY
from unit.alpa_cfp.analysis import llama

# Name, layers and how the layers are written: everything that has its own shape of program.
MODELS = ("mlp", "gpt", "bert", "moe", "conv", "unet", "llama", "llama, remat", "llama, scan", "llama, scan, remat")


def bytecode_of(function: Callable[..., Any], *args: Any) -> bytes:
    """The bytecode of a function, calls inlined."""
    return bytecode_of_text(jax.jit(function).trace(*args).lower().as_text())


def bytecode_of_text(text: str) -> bytes:
    """The bytecode of StableHLO text, calls inlined."""
    return HloModule.from_stablehlo("program", text).bytecode


def graph_of(function: Callable[..., Any], *args: Any) -> Graph:
    """The graph of a function."""
    return read_graph(bytecode_of(function, *args))


def blocks_of(function: Callable[..., Any], *args: Any) -> Blocks:
    """The blocks of a function."""
    return find_blocks(graph_of(function, *args))


@cache
def model_bytecode(name: str, layers: int = 2) -> bytes:
    """The bytecode of a model's training step; `name` is one of MODELS."""
    base, *max_shards = name.split(", ")
    if base == "llama":
        size = llama.LlamaSize(layers=layers)
        return bytecode_of_text(llama.lower(size, remat="remat" in max_shards, scan="scan" in max_shards))
    model = build(base, dataclasses.replace(TINY, layers=layers))
    return bytecode_of(train_step(model, jax.value_and_grad), model.state, model.batch)


@cache
def model_blocks(name: str, layers: int = 2) -> Blocks:
    """The blocks of a model's training step."""
    return find_blocks(read_graph(model_bytecode(name, layers)))


def with_loops(blocks: Blocks) -> Iterator[Blocks]:
    """Blocks, and those of all loops inside."""
    yield blocks
    for loop in blocks.loops:
        yield from with_loops(loop.blocks)


def forward_ops(blocks: Blocks, block: int) -> list[str]:
    """The names without dialect of a block's forward contractions, in program order."""
    entries = blocks.blocks[block].entries
    return [blocks.graph.ops[entry.op].name.split(".")[1] for entry in entries if entry.role == "forward"]


def roles(blocks: Blocks, block: int) -> list[str]:
    """The roles of a block's entries, sorted."""
    return sorted(entry.role for entry in blocks.blocks[block].entries)


def with_positions(words: jax.Array, positions: jax.Array, w: jax.Array, ids: jax.Array) -> jax.Array:
    """The sum of looked up words, each with its position, which all samples share, after a layer."""
    x = words[ids] + positions[jnp.arange(ids.shape[1])]
    return jnp.sum(jnp.tanh(x @ w))


POSITION_ARGUMENTS = (
    *(jax.ShapeDtypeStruct((rows, 16), jnp.float32) for rows in (32, 8, 16)),
    jax.ShapeDtypeStruct((4, 8), jnp.int32),
)


def with_biased_scores(x: jax.Array, queries: jax.Array, keys: jax.Array, bias: jax.Array) -> jax.Array:
    """The sum of attention weights whose scores have a bias for each distance, which all samples share."""
    split = [jnp.einsum("bsd,dhk->bshk", x, each) for each in (queries, keys)]
    length = x.shape[1]
    distances = jnp.abs(jnp.arange(length)[:, None] - jnp.arange(length))
    scores = jnp.einsum("bqhk,bshk->bhqs", *split) + jnp.moveaxis(jax.nn.one_hot(distances, length) @ bias, -1, 0)
    return jnp.sum(jax.nn.softmax(scores) ** 2)


# Samples, positions and heads: each sample and head has fewer elements than there are pairs of positions.
SCORE_ARGUMENTS = tuple(
    jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((4, 32, 16), (16, 2, 8), (16, 2, 8), (32, 2))
)


def gates(x: jax.Array, state: jax.Array, *weights: jax.Array) -> jax.Array:
    """The sum of what a recurrent cell of two gates gives."""
    a, b, c, d = weights
    return jnp.sum(jnp.tanh(x @ a + state @ b) * jnp.tanh(x @ c + state @ d))


GATE_ARGUMENTS = tuple(jax.ShapeDtypeStruct((rows, 16), jnp.float32) for rows in (8, 8, 16, 16, 16, 16))


def gradients(function: Callable[..., jax.Array], count: int) -> Callable[..., Any]:
    """The gradients of a function with respect to its first arguments."""
    return jax.grad(function, argnums=tuple(range(count)))
