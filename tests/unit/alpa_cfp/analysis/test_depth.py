"""However deep a model is, it has the same kinds of blocks and segments, so there is as much to measure.

The models are flax's, whose parameters are updated in the order of their names: "layer_10" before "layer_9".
"""

import dataclasses
from functools import cache

import jax
import pytest

from alpa_cfp.analysis.blocks import find_blocks
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.analysis.segments import Segments, digests_of, find_segments
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import abstract
from alpa_cfp_bench.workloads.sizes import TINY
from unit.alpa_cfp.analysis.programs import bytecode_of, forward_ops, roles, with_loops

pytestmark = pytest.mark.slow

DEEP = [12, pytest.param(32, marks=pytest.mark.slow)]
# What one layer more adds: a layer of experts, which every second one is, has six blocks more than a dense one.
BLOCKS_OF_TWO_LAYERS = {"gpt": 8, "llama": 8, "llama, remat": 8, "moe": 11}


@cache
def segments_of(name: str, layers: int) -> Segments:
    """The segments of a training step, of which only shapes exist."""
    model = abstract(name, dataclasses.replace(TINY, layers=layers))
    bytecode = bytecode_of(train_step(model, jax.value_and_grad), model.state, model.batch)
    return find_segments(find_blocks(read_graph(bytecode)))


def kinds_of_blocks(segments: Segments) -> int:
    """The number of kinds of blocks, each of which is measured."""
    blocks = segments.blocks
    return len(set(digests_of(blocks.graph, [(*block.members, *block.glue) for block in blocks.blocks])))


@pytest.mark.parametrize("layers", DEEP)
@pytest.mark.parametrize("case", BLOCKS_OF_TWO_LAYERS)  # a case is read once (conftest.py)
def test_a_model_of_any_depth_has_as_many_kinds_of_segments_as_one_of_four_layers(case: str, layers: int) -> None:
    few, many = segments_of(case, 4), segments_of(case, layers)
    assert len(many.kinds) == len(few.kinds) == 3
    assert len(many.blocks.blocks) - len(few.blocks.blocks) == (layers - 4) // 2 * BLOCKS_OF_TWO_LAYERS[case]


@pytest.mark.parametrize("layers", DEEP)
@pytest.mark.parametrize("case", BLOCKS_OF_TWO_LAYERS)  # a case is read once (conftest.py)
def test_a_model_of_any_depth_has_as_many_kinds_of_blocks_as_one_of_four_layers(case: str, layers: int) -> None:
    assert kinds_of_blocks(segments_of(case, layers)) == kinds_of_blocks(segments_of(case, 4))


@pytest.mark.parametrize("name", ["llama", "llama, remat", "llama, tied", "llama, bf16"])
def test_a_llama_layer_of_flax_is_four_blocks(name: str) -> None:
    blocks = segments_of(name, 4).blocks
    counts = [len(forward_ops(blocks, block.index)) for block in blocks.blocks]
    assert counts == [1, *[5, 1, 2, 1] * 4, 1]


def test_a_llama_layer_of_flax_that_is_rematerialised_has_its_contractions_twice() -> None:
    plain, remat = segments_of("llama", 4).blocks, segments_of("llama, remat", 4).blocks
    for one, other in zip(plain.blocks, remat.blocks, strict=True):
        assert [(f.side, f.max_shards, f.usable) for f in one.factors] == [
            (f.side, f.max_shards, f.usable) for f in other.factors
        ]
    assert roles(remat, 5) == ["forward"] * 5 + ["gradient"] * 10 + ["rematerialised"] * 5


def test_a_llama_layer_of_flax_in_a_scan_is_four_blocks_however_many_there_are() -> None:
    few, many = segments_of("llama, scan", 4).blocks, segments_of("llama, scan", 24).blocks
    for blocks in (few, many):
        (loop,) = blocks.loops
        assert [len(forward_ops(loop.blocks, block.index)) for block in loop.blocks.blocks] == [5, 1, 2, 1]
    assert [len(each.graph.ops) for each in with_loops(few)] == [len(each.graph.ops) for each in with_loops(many)]
