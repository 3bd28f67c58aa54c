"""The memory of a program under `jax.checkpoint`: of each layer what goes in is saved, and one layer's rest is there.

A compiled program tells the truth: XLA on a CPU, told to leave the barriers alone, which it otherwise takes out first
and then finds that everything is computed already.
"""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_cfp.analysis.blocks import find_blocks
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.candidates.block_candidates import find_block_candidates
from alpa_cfp.costs import Rates
from alpa_cfp.extraction.subprograms import find_subprograms
from alpa_cfp.search import MemoryUse
from alpa_cfp.select.baselines import baselines
from alpa_cfp.select.search_problem import find_boundaries
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from unit.alpa_cfp.training_steps import estimated_problem

pytestmark = pytest.mark.slow

SAMPLES, SEQUENCE, WIDTH, HEADS = 16, 64, 64, 8
INPUT_BYTES = SAMPLES * SEQUENCE * WIDTH * 4
# The names of the plans are those of `baselines`; on one device there is one only.
ONE_DEVICE, MEGATRON, SAMPLES_SPLIT = ((1,), "data parallel"), ((8,), "Megatron"), ((8,), "data parallel")
KEPT_APART = {"xla_disable_hlo_passes": "cse_barrier_expander"}


def layer(x: Any, weights: Any) -> Any:
    """A layer of GPT, its projections of queries, keys and values one product."""
    normal = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
    query, key, value = jnp.split((normal @ weights[0]).reshape(SAMPLES, SEQUENCE, HEADS, -1), 3, axis=-1)
    scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", query, key), axis=-1)
    x = x + jnp.einsum("bhqk,bkhd->bqhd", scores, value).reshape(x.shape) @ weights[1]
    return x + jax.nn.gelu(x @ weights[2]) @ weights[3]


@cache
def step(layers: int, *, remat: bool) -> Any:
    """(weights, x) -> new weights, lowered; the weights are donated."""
    each = jax.checkpoint(layer) if remat else layer

    def loss(weights: Any, x: Any) -> Any:
        for own in weights:
            x = each(x, own)
        return jnp.mean(x**2)

    def train(weights: Any, x: Any) -> Any:
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights, x))

    shapes = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))
    weights = [[jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]] * layers
    x = jax.ShapeDtypeStruct((SAMPLES, SEQUENCE, WIDTH), np.float32)
    return jax.jit(train, donate_argnums=0).trace(weights, x).lower(lowering_platforms=("cpu",))


@cache
def predicted(plan: tuple[tuple[int, ...], str], layers: int, *, remat: bool) -> MemoryUse:
    """What a plain plan is predicted to need."""
    (shape, name), mesh = plan, LogicalMesh(plan[0])
    text = str(step(layers, remat=remat).compiler_ir("stablehlo"))
    module = HloModule.from_stablehlo("step", text, (True,) * 4 * layers + (False,))
    blocks = find_blocks(read_graph(module.bytecode))
    block_candidates = find_block_candidates(find_subprograms(module, blocks), mesh)
    times_s = [[1.0] * len(block.candidates) for block in block_candidates]
    problem = estimated_problem(block_candidates, find_boundaries(module, blocks, block_candidates), times_s, Rates())
    if shape == (1,):
        return problem.memory([0] * len(block_candidates))
    return baselines(blocks.blocks, block_candidates, problem, mesh)[name].memory


def needed(layers: int, *, remat: bool) -> int:
    """The temporaries of the compiled program on one device, in bytes."""
    return step(layers, remat=remat).compile(compiler_options=KEPT_APART).memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(("plan", "parts"), [(ONE_DEVICE, 1), (SAMPLES_SPLIT, 8), (MEGATRON, 1)], ids=str)
def test_of_each_layer_that_is_computed_again_its_input_is_saved(plan: tuple[tuple[int, ...], str], parts: int) -> None:
    two, four = (predicted(plan, layers, remat=True) for layers in (2, 4))
    # Ranges that are not quite alike count as their mean.
    assert four.saved - two.saved <= 2.02 * INPUT_BYTES / parts
    assert four.transient == two.transient


def test_memory_grows_with_the_layers_as_that_of_the_compiled_program_does() -> None:
    for remat in (True, False):
        two, four = (predicted(ONE_DEVICE, layers, remat=remat) for layers in (2, 4))
        growth = four.total - four.state - (two.total - two.state)
        assert 1 / 1.5 <= growth / (needed(4, remat=remat) - needed(2, remat=remat)) <= 1.5


def test_what_one_layer_computes_again_is_counted_once() -> None:
    memory = predicted(ONE_DEVICE, 4, remat=True)
    assert 1 / 1.5 <= (memory.saved + memory.transient) / needed(4, remat=True) <= 1.5
