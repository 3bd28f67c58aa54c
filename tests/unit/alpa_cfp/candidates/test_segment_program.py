"""A segment alone is sharded as in its stage, though the update is left out of it."""

import dataclasses
import random
from collections.abc import Sequence
from functools import cache

import pytest

from alpa_cfp.analysis.segments import find_segments
from alpa_cfp.apply.annotate import annotate
from alpa_cfp.candidates.block_candidates import BlockCandidates, find_block_candidates
from alpa_cfp.candidates.segment_program import SegmentProgram, segment_program
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import StateSharding
from alpa_cfp_bench.workloads.sizes import TINY
from unit.alpa_cfp.training_steps import stage_module

pytestmark = pytest.mark.slow

MESH = LogicalMesh((2, 2))


@cache
def stage(name: str) -> tuple[AnalysedProgram, tuple[BlockCandidates, ...]]:
    program = AnalysedProgram(stage_module(name, dataclasses.replace(TINY, layers=2)))
    return program, find_block_candidates(program.subprograms, MESH)


def first_with(block_candidates: Sequence[BlockCandidates], state_sharding: StateSharding) -> tuple[int, ...]:
    """For each block the first candidate with this state sharding, or its first."""
    kinds = (
        [candidate.strategy.state_sharding for candidate in each_block.candidates] for each_block in block_candidates
    )
    return tuple(each.index(state_sharding) if state_sharding in each else 0 for each in kinds)


def drawn_with(
    block_candidates: Sequence[BlockCandidates], state_sharding: StateSharding, seed: int
) -> tuple[int, ...]:
    """For each block any candidate with this state sharding, or its first."""
    rng = random.Random(seed)
    found = (
        [n for n, each in enumerate(each_block.candidates) if each.strategy.state_sharding is state_sharding]
        for each_block in block_candidates
    )
    return tuple(rng.choice(each or [0]) for each in found)


def segments(
    program: AnalysedProgram, block_candidates: Sequence[BlockCandidates], choices: Sequence[int]
) -> list[SegmentProgram]:
    found = find_segments(program.blocks)
    made = (
        segment_program(program, block_candidates, choices, found.segments[kind].blocks, MESH) for kind in found.kinds
    )
    return [segment for segment in made if segment is not None]


def in_the_stage(
    program: AnalysedProgram, block_candidates: Sequence[BlockCandidates], choices: Sequence[int]
) -> HloModule:
    module = dataclasses.replace(program.module)
    chosen = [
        each_block.candidates[choice].strategy for each_block, choice in zip(block_candidates, choices, strict=True)
    ]
    annotate(module, program.blocks, MESH, chosen)
    return module


@pytest.mark.parametrize("state_sharding", StateSharding)
@pytest.mark.parametrize("name", ["mlp", "gpt", "moe"])
def test_weights_and_sums_of_gradients_are_sharded_as_in_the_stage(name: str, state_sharding: StateSharding) -> None:
    program, block_candidates = stage(name)
    assert hold_state(program, block_candidates, first_with(block_candidates, state_sharding)) > 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("state_sharding", StateSharding)
def test_so_they_do_under_any_strategies_where_no_two_segments_use_one_parameter(
    state_sharding: StateSharding, seed: int
) -> None:
    program, block_candidates = stage("mlp")
    assert hold_state(program, block_candidates, drawn_with(block_candidates, state_sharding, seed)) > 0


def hold_state(program: AnalysedProgram, block_candidates: Sequence[BlockCandidates], choices: Sequence[int]) -> int:
    """Compare the shardings of state in segments and in the stage; returns the number of arrays."""
    whole, graph = in_the_stage(program, block_candidates, choices), program.blocks.graph
    assert whole.input_shardings is not None
    state = {parameter for parameter in range(len(graph.parameters)) if program.module.donated[parameter]}
    compared = 0
    for segment in segments(program, block_candidates, choices):
        assert segment.module.input_shardings is not None
        for value, sharding in zip(segment.inputs, segment.module.input_shardings, strict=True):
            if graph.values[value].op is None and graph.values[value].position in state:
                assert sharding == whole.input_shardings[graph.values[value].position]
                compared += 1
    return compared
