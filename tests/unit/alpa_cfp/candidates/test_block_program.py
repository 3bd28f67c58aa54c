"""What a block rematerialises is split as what it computes first, though barriers lie between them."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_cfp.analysis.blocks import find_blocks
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.candidates.block_candidates import BlockCandidates, find_block_candidates
from alpa_cfp.costs import Rates
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.extraction.subprograms import BlockSubprograms, find_subprograms
from alpa_cfp.jit.tracing import trace
from alpa_cfp.select.baselines import baselines
from alpa_cfp.select.search_problem import find_boundaries
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp_bench.workloads.published import SUITES
from alpa_cfp_bench.workloads.published_programs import program_of
from unit.alpa_cfp.training_steps import estimated_problem

pytestmark = pytest.mark.slow

MESH, SAMPLES, WIDTH = LogicalMesh((8,)), 16, 64


def layer(x: jax.Array, weights: tuple[jax.Array, jax.Array]) -> jax.Array:
    """The norm of a layer is computed again from what the block of the layer before leaves."""
    normal = x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    return x + jnp.tanh(normal @ weights[0]) @ weights[1]


@cache
def subprograms(*, remat: bool) -> BlockSubprograms:
    each = jax.checkpoint(layer) if remat else layer

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for own in weights:
            x = each(x, own)
        return jnp.mean(x**2)

    def train(weights: Any, x: jax.Array) -> Any:
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights, x))

    shapes = ((WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))
    weights = [tuple(jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes)] * 3
    x = jax.ShapeDtypeStruct((SAMPLES, WIDTH), np.float32)
    lowered = jax.jit(train, donate_argnums=0).trace(weights, x).lower(lowering_platforms=("cpu",))
    module = HloModule.from_stablehlo("step", str(lowered.compiler_ir("stablehlo")), (True,) * 6 + (False,))
    return find_subprograms(module, find_blocks(read_graph(module.bytecode)))


@cache
def candidates(*, remat: bool) -> tuple[BlockCandidates, ...]:
    return find_block_candidates(subprograms(remat=remat), MESH)


@cache
def data_parallel() -> tuple[int, ...]:
    """The candidate of each block by which the samples are split."""
    made, found = subprograms(remat=True), candidates(remat=True)
    times_s = [[1.0] * len(block.candidates) for block in found]
    problem = estimated_problem(found, find_boundaries(made.module, made.blocks, found), times_s, Rates())
    return baselines(made.blocks.blocks, found, problem, MESH)["data parallel"].choices


def test_only_rematerialised_values_are_in_a_subprogram_twice() -> None:
    assert any(each.spec.ties for each in subprograms(remat=True).subprograms)
    assert not any(each.spec.ties for each in subprograms(remat=False).subprograms)


def test_with_samples_split_nothing_moves_between_the_blocks_of_rematerialised_layers() -> None:
    made, found, choices = subprograms(remat=True), candidates(remat=True), data_parallel()
    for crossing in find_boundaries(made.module, made.blocks, found).crossings:
        assert not crossing.amounts[crossing.pair(choices)].any()


def test_all_that_a_block_has_of_samples_is_split_with_them() -> None:
    graph = subprograms(remat=True).blocks.graph
    for block, choice in zip(candidates(remat=True), data_parallel(), strict=True):
        chosen = block.candidates[choice]
        places = [*zip(block.inputs, chosen.inputs, strict=True), *zip(block.outputs, chosen.outputs, strict=True)]
        samples = [sharding for value, sharding in places if graph.shape(value)[:1] == (SAMPLES,)]
        assert samples
        assert all(sharding.num_shards(0) == 8 for sharding in samples)


def test_with_samples_split_nothing_moves_between_the_blocks_of_a_gpt_whose_norms_lie_in_two_blocks_each() -> None:
    sizes = {"layers": 2, "hidden": 64, "heads": 4, "sequence": 32, "vocabulary": 256}
    case = replace(SUITES["gpt"]["1.3B"], batch=8, micro_batches=1, mesh=(1, 8), **sizes)
    made = program_of(case)
    program = AnalysedProgram(trace(made.step, (made.state, made.batch), {}, 0, "cpu").module)
    found = find_block_candidates(program.subprograms, MESH)
    boundaries, times_s = (
        find_boundaries(program.module, program.blocks, found),
        [[1.0] * len(b.candidates) for b in found],
    )
    problem = estimated_problem(found, boundaries, times_s, Rates())
    choices = baselines(program.blocks.blocks, found, problem, MESH)["data parallel"].choices
    for crossing in boundaries.crossings:
        assert not crossing.amounts[crossing.pair(choices)].any()
