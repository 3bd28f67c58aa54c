"""Strategies written into a program: what is in it afterwards is all that there is to be said of its values."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_cfp.analysis.contractions import Side
from alpa_cfp.apply.annotate import annotate
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import partition_to_run
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding, strategies_of
from unit.alpa_cfp.spmd.helpers import lower
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


def layer(first: jax.Array, second: jax.Array, x: jax.Array) -> jax.Array:
    """Two products, the second of which adds to what lies between layers, and a norm of it, for another layer."""
    for _ in range(2):
        x = x + jnp.tanh(x @ first) @ second
        x = x / jnp.sqrt(jnp.mean(x**2, axis=1, keepdims=True))
    return x


def trained(first: jax.Array, second: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
    """The gradients of both weights."""
    return jax.grad(lambda up, down: jnp.sum(layer(up, down, x) ** 2), (0, 1))(first, second)


@cache
def layer_program(function: Callable[..., Any]) -> AnalysedProgram:
    shapes = ((16, 32), (32, 16), (64, 16))
    return AnalysedProgram(lower(function, tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)))


def collectives(function: Callable[..., Any], mesh: LogicalMesh, *, split_sums: bool) -> dict[str, int]:
    """Those of two layers whose weights are split by columns, then by rows, along the last axis of a mesh, and whose
    samples are split along the others; without those of single numbers."""
    program = layer_program(function)
    assert len(program.blocks.blocks) == 4

    def strategy(side: Side, number: int) -> BlockStrategy:
        sides = [factor.side for factor in program.blocks.blocks[number].factors]
        samples = sides.index(Side.LEFT)
        split = (*(samples for _ in mesh.shape[:-1]), sides.index(side))
        return BlockStrategy(split, sums_along=samples if split_sums else None)

    chosen = [strategy((Side.RIGHT, Side.REDUCTION)[number % 2], number) for number in range(4)]
    module = dataclasses.replace(program.module)
    annotate(module, program.blocks, mesh, chosen)
    return dict(Counter(each.kind for each in partition_to_run(module).collectives if each.size_bytes > 4))


@pytest.mark.parametrize("shape", [(4,), (2, 4)])
def test_split_sums_are_scattered_and_gathered_where_the_next_block_needs_them_whole(shape: tuple[int, ...]) -> None:
    mesh = LogicalMesh(shape)
    assert collectives(layer, mesh, split_sums=False) == {"all-reduce": 2}
    assert collectives(layer, mesh, split_sums=True) == {"reduce-scatter": 2, "all-gather": 1}


def test_sums_of_gradients_of_activations_are_scattered_too() -> None:
    mesh = LogicalMesh((4,))
    # Two forward, and one backward: nobody asks for the gradient of the first layer's input.
    assert collectives(trained, mesh, split_sums=False)["all-reduce"] == 3
    split = collectives(trained, mesh, split_sums=True)
    assert split["reduce-scatter"] == 3
    assert "all-reduce" not in split
