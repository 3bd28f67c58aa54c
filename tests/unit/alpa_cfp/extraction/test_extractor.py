"""A subprogram computes the same values as in the program, and equal parts give equal modules."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_cfp.analysis.blocks import Blocks, find_blocks
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.analysis.segments import digests_of, find_segments
from alpa_cfp.apply.annotate import annotate
from alpa_cfp.extraction.extractor import Subprogram, extract
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import partition
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import strategies_of
from unit.alpa_cfp.analysis.llama import LlamaSize
from unit.alpa_cfp.analysis.llama import lower as lower_llama
from unit.alpa_cfp.spmd.helpers import lower, marked, run, values_of

pytestmark = pytest.mark.slow

ONE_DEVICE = LogicalMesh((1,))
_RNG = np.random.default_rng(5)
X, V, W = (_RNG.normal(size=shape).astype(np.float32) for shape in ((8, 16), (16, 16), (16, 16)))


def layers(x, v, w):
    """Two layers and what a program has beside them: a constant, a value that is used twice."""
    y = jnp.tanh(x @ v) + jnp.arange(16.0)
    return y, jnp.exp(y @ w) * y.sum()


def blocks_of(module: HloModule) -> Blocks:
    return find_blocks(read_graph(module.bytecode))


def ops_of(blocks: Blocks, number: int) -> list[int]:
    return [op for op, block in enumerate(blocks.block_of_op) if block == number]


def computed(subprogram: Subprogram, values: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """The values that a subprogram computes, by their ids in the program."""
    module, inputs = subprogram.module, [values[value] for value in subprogram.inputs]
    annotate(
        module, subprogram.blocks, ONE_DEVICE, [strategies_of(block, (1,))[0] for block in subprogram.blocks.blocks]
    )
    results = run(module, partition(module), inputs)
    return dict(zip(subprogram.outputs, map(np.asarray, results), strict=True))


def test_the_parts_of_a_program_compute_together_what_the_whole_does() -> None:
    module = lower(layers, (X, V, W))
    blocks = blocks_of(module)
    values = dict(zip(blocks.graph.parameters, (X, V, W), strict=True))
    for block in blocks.blocks:
        values |= computed(extract(module, blocks, ops_of(blocks, block.index), "subprogram"), values)
    assert len(blocks.blocks) == 2
    for result, expected in zip(blocks.graph.results, values_of(layers, (X, V, W)), strict=True):
        # What is added up to an entry is up to 16, and its sum may cancel: float32 rounds that by 1e-6.
        np.testing.assert_allclose(values[result], expected, rtol=1e-5, atol=1e-6)


def test_a_part_takes_only_what_it_uses_and_gives_only_what_is_used() -> None:
    module = lower(layers, (X, V, W))
    blocks = blocks_of(module)
    first, second = (extract(module, blocks, ops_of(blocks, number), "subprogram") for number in (0, 1))
    x, v, w = blocks.graph.parameters
    assert set(first.inputs) == {x, v}
    assert w in second.inputs
    assert set(second.inputs) - {w} <= set(first.outputs)
    assert set(second.outputs) == {blocks.graph.results[1]}


def test_a_donated_parameter_that_a_part_updates_is_donated_to_it() -> None:
    def update(w, x):
        return w - 0.1 * (x.T @ x)

    module = lower(update, (V, X), donated=(True, False))
    subprogram = extract(module, blocks_of(module), ops_of(blocks_of(module), 0), "subprogram")
    assert dict(zip(subprogram.inputs, subprogram.module.donated, strict=True)) == {0: True, 1: False}


def test_no_more_parameters_are_donated_than_the_part_has_new_values_for() -> None:
    def update(v, w, x):
        return v - w * (x.T @ x)

    module = lower(update, (V, W, X), donated=(True, True, False))
    subprogram = extract(module, blocks_of(module), ops_of(blocks_of(module), 0), "subprogram")
    assert sum(subprogram.module.donated) == 1


@cache
def llama() -> tuple[HloModule, Blocks]:
    module = HloModule.from_stablehlo("llama", lower_llama(LlamaSize(layers=4)))
    return module, blocks_of(module)


def test_segments_of_one_kind_give_equal_modules() -> None:
    module, blocks = llama()
    segments = find_segments(blocks)
    texts: dict[int, set[str]] = {}
    for segment in segments.segments:
        texts.setdefault(segment.kind, set()).add(extract(module, blocks, segment.ops, "segment").module.to_string())
    assert [len(of_kind) for of_kind in texts.values()] == [1, 1, 1]


def test_blocks_of_one_digest_give_equal_modules_whoever_uses_what_has_passed_a_barrier() -> None:
    def step(x, u, v):
        # What goes into a barrier leaves its block, though only the same block may use it behind.
        for into_barrier in (True, True, False, False, True):
            y = jnp.tanh(x @ v)
            x = y * jax.lax.optimization_barrier(y if into_barrier else u)
        return x

    module = lower(step, (X, X, V))
    blocks = blocks_of(module)
    parts = [(*block.members, *block.glue) for block in blocks.blocks]
    texts: dict[bytes, set[str]] = {}
    for digest, part in zip(digests_of(blocks.graph, parts), parts, strict=True):
        texts.setdefault(digest, set()).add(extract(module, blocks, part, "block").module.to_string())
    assert len(texts) < len(parts)
    assert {len(of_digest) for of_digest in texts.values()} == {1}


@pytest.mark.parametrize("mesh_shape", [(8,), (2, 4)], ids=str)
def test_a_segment_of_a_training_step_can_be_partitioned_alone(mesh_shape: tuple[int, ...]) -> None:
    module, blocks = llama()
    layer = find_segments(blocks).segments[1]
    for number in range(3):
        subprogram = extract(module, blocks, layer.ops, "segment")
        choices = [strategies_of(block, mesh_shape) for block in subprogram.blocks.blocks]
        annotate(
            subprogram.module, subprogram.blocks, LogicalMesh(mesh_shape), [c[-1 - number % len(c)] for c in choices]
        )
        assert partition(subprogram.module).partitioner == "shardy"


def test_a_parameter_that_each_pass_has_behind_a_mark_of_its_own_is_one_parameter_of_a_part() -> None:
    def step(x, w):
        before, late = jax.lax.optimization_barrier(w), jax.lax.optimization_barrier(w)
        return late - jnp.tanh(x @ before).sum(0)

    ends = {}
    for names in (["a$start", "b$start"], None):
        module = lower(step, (X, W))
        module = module if names is None else marked(module, names)
        blocks = blocks_of(module)
        subprogram = extract(module, blocks, ops_of(blocks, 0), "subprogram")
        ends[names is not None] = [blocks.graph.shape(value) for value in subprogram.inputs]
    assert ends == {True: [(8, 16), (16, 16)], False: [(8, 16), (16, 16), (16, 16)]}
