"""Strategies written into a program: what is in it afterwards is all that there is to be said of its values."""

import dataclasses
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_cfp.apply.annotate import annotate
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import partition_to_run
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import StateSharding, strategies_of
from unit.alpa_cfp.training_steps import model_module

pytestmark = pytest.mark.slow

MESH = LogicalMesh((2, 4))
MODELS = ("mlp", "gpt", "moe", "conv")


@cache
def program_of(name: str) -> AnalysedProgram:
    """The step of a model, analysed once."""
    return AnalysedProgram(model_module(name))


def text(module: HloModule) -> str:
    """Of one device's program."""
    with mlir.context():
        return mlir.to_text(mlir.parse(partition_to_run(module).bytecode))


@pytest.mark.parametrize("name", MODELS)
@given(data=st.data())
@settings(max_examples=4, deadline=None)
def test_propagating_once_more_changes_nothing(name: str, data: st.DataObject) -> None:
    program = program_of(name)
    state_sharding = data.draw(st.sampled_from(StateSharding), label="state sharding")
    drawn = (data.draw(st.sampled_from(strategies_of(block, MESH.shape))) for block in program.blocks.blocks)
    chosen = [dataclasses.replace(strategy, state_sharding=state_sharding) for strategy in drawn]
    module = dataclasses.replace(program.module)
    annotate(module, program.blocks, MESH, chosen)
    assert module.propagated
    assert text(module) == text(dataclasses.replace(module, propagated=False))
