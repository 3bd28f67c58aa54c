"""A skeleton is the program of a shallower model, and tells what the program of the deep one does."""

import dataclasses
import random
from collections import Counter
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_cfp.analysis.blocks import Blocks, find_blocks
from alpa_cfp.analysis.graph import Graph
from alpa_cfp.analysis.segments import digests_of
from alpa_cfp.candidates.block_candidates import BlockCandidates, find_block_candidates
from alpa_cfp.costs import read_local, work_of
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.extraction.skeleton import Extrapolation, Skeleton, Skeletons
from alpa_cfp.planner.plan_programs import with_plan
from alpa_cfp.select.planned_program import PlannedProgram
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.propagation import donation_pairs
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import abstract
from alpa_cfp_bench.workloads.sizes import TINY
from unit.alpa_cfp.spmd.helpers import lower, run

pytestmark = pytest.mark.slow

# Models with their layers; every second one of the last is one of experts.
DEPTHS = {"gpt": 8, "llama, remat": 8, "llama, tied": 8, "moe": 12}
MODELS, RECURRENCE = tuple(DEPTHS), "unrolled recurrence"
# The blocks of two layers.
BLOCKS = {"gpt": 8, "llama, remat": 8, "llama, tied": 8, "moe": 11}
WIDTH, ROWS = 16, 32
# Skeletons of models that are hardly deeper than they are larger than the models; the planner does not take these.
ANY = 9.0


def unrolled() -> HloModule:
    """A training step of an unrolled recurrence, of which each step takes its part of the inputs by a slice."""

    def step(state: Any, inputs: Any) -> Any:
        def loss(state: Any) -> Any:
            hidden, outputs = jnp.zeros((ROWS, WIDTH)), []
            for number in range(24):
                hidden = jnp.tanh(hidden @ state["w"] + inputs[:, number] @ state["u"])
                outputs.append(hidden)
            return (jnp.stack(outputs, 1) ** 2).sum()

        return jax.tree.map(lambda value, gradient: value - gradient, state, jax.grad(loss)(state))

    weight = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    inputs = jax.ShapeDtypeStruct((ROWS, 24, WIDTH), jnp.float32)
    lowered = jax.jit(step).trace({"w": weight, "u": weight}, inputs).lower(lowering_platforms=("cpu",))
    return HloModule.from_stablehlo(RECURRENCE, lowered.as_text(), [True, True, False])


@cache
def analysed(name: str, layers: int = 0) -> AnalysedProgram:
    """A training step of so many layers, its state donated."""
    if name == RECURRENCE:
        return AnalysedProgram(unrolled())
    model = abstract(name, dataclasses.replace(TINY, layers=layers or DEPTHS[name]))
    step = train_step(model, jax.value_and_grad)
    traced = jax.jit(lambda state, batch: step(state, batch)[0], keep_unused=True).trace(model.state, model.batch)
    donated = [True] * len(jax.tree.leaves(model.state)) + [False] * len(jax.tree.leaves(model.batch))
    text = str(traced.lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo"))
    return AnalysedProgram(HloModule.from_stablehlo(name, text, donated))


@cache
def candidates(name: str, mesh: LogicalMesh) -> tuple[BlockCandidates, ...]:
    return find_block_candidates(analysed(name).subprograms, mesh)


@cache
def skeletons(name: str) -> Extrapolation:
    found = analysed(name).skeletons.find(share=ANY)
    assert found is not None
    return found


def choices_of(name: str, mesh: LogicalMesh, seed: int) -> tuple[int, ...]:
    """Any choice for each kind of block."""
    drawn, of_kind = random.Random(seed), dict[int, int]()
    return tuple(
        of_kind.setdefault(each.kind, drawn.randrange(len(each.candidates))) for each in candidates(name, mesh)
    )


def planned(name: str, mesh: LogicalMesh, choices: tuple[int, ...], skeleton: Skeleton) -> HloModule:
    strategies = [
        each.candidates[choice].strategy for each, choice in zip(candidates(name, mesh), choices, strict=True)
    ]
    return with_plan(skeleton.module, skeleton.blocks, mesh, [strategies[block] for block in skeleton.stands_for])


def whole(name: str) -> Skeleton:
    program = analysed(name)
    return Skeleton(program.module, program.blocks, tuple(range(len(program.blocks.blocks))))


def counted(graph: Graph) -> Counter[Any]:
    """The ops with their attributes and shapes; without constants, some of which nothing uses."""
    return Counter(
        (op.name, op.attributes, tuple(graph.shape(value) for value in (*op.operands, *op.results)))
        for op in graph.ops
        if not graph.constant_derived[op.index]
    )


def digests(blocks: Blocks) -> list[bytes]:
    return digests_of(blocks.graph, [(*block.members, *block.glue) for block in blocks.blocks])


@pytest.mark.parametrize("name", MODELS)
def test_a_skeleton_has_the_ops_and_blocks_of_a_shallower_model(name: str) -> None:
    for skeleton in skeletons(name).all:
        left_out = len(analysed(name).blocks.blocks) - len(skeleton.stands_for)
        shallower = analysed(name, DEPTHS[name] - 2 * left_out // BLOCKS[name]).blocks
        assert counted(skeleton.blocks.graph) == counted(shallower.graph)
        assert [len(block.entries) for block in skeleton.blocks.blocks] == [
            len(block.entries) for block in shallower.blocks
        ]


@pytest.mark.parametrize("name", MODELS)
def test_blocks_that_are_found_in_a_skeleton_are_those_that_it_has(name: str) -> None:
    for skeleton in skeletons(name).all:
        found = find_blocks(skeleton.blocks.graph)
        assert found.blocks == skeleton.blocks.blocks
        assert found.block_of_op == skeleton.blocks.block_of_op


@pytest.mark.parametrize("name", MODELS)
def test_blocks_beside_no_gap_are_equal_to_those_that_they_stand_for(name: str) -> None:
    of_program = digests(analysed(name).blocks)
    for skeleton in skeletons(name).all:
        steps = np.diff((-1, *skeleton.stands_for, len(of_program)))
        inner = [i for i in range(len(skeleton.stands_for)) if steps[i] == steps[i + 1] == 1]
        own = digests(skeleton.blocks)
        assert inner
        assert [own[i] for i in inner] == [of_program[skeleton.stands_for[i]] for i in inner]


@pytest.mark.parametrize("name", MODELS)
def test_parameters_of_a_skeleton_give_their_buffers_to_results_of_their_shape(name: str) -> None:
    for skeleton in skeletons(name).all:
        module = skeleton.module
        assert len(module.aliases) == sum(module.donated) == len(module.shape.results)
        assert all(module.shape.results[r] == module.shape.parameters[p] for r, p in module.aliases)
        assert tuple(donation_pairs(module)) == module.aliases


@pytest.mark.parametrize(("name", "shape"), [*((name, (8,)) for name in MODELS), ("gpt", (2, 4)), (RECURRENCE, (8,))])
def test_skeletons_tell_the_work_of_the_whole_program(name: str, shape: tuple[int, ...]) -> None:
    mesh = LogicalMesh(shape)
    for seed in range(2):
        choices = choices_of(name, mesh, seed)
        found = analysed(name).skeletons.find(choices, share=ANY)
        assert found is not None
        least, *longer = (planned(name, mesh, choices, each) for each in found.all)
        work = PlannedProgram.of_skeletons(least, longer, found.missing, found.blocks).work
        assert work is not None
        told = work.collectives
        known = planned(name, mesh, choices, whole(name)).partitioned
        assert known is not None
        # How small gathers are combined differs with what else there is; their number and bytes do not.
        assert Counter((each.kind, each.group_size) for each in told) == Counter(
            (each.kind, each.group_size) for each in known.collectives
        )
        assert sum(each.size_bytes for each in told) == sum(each.size_bytes for each in known.collectives)
        computed = work_of(known, read_local(known))
        assert work.flops == pytest.approx(computed.flops)
        assert work.memory_bytes == pytest.approx(computed.memory_bytes)


def test_layers_with_other_choices_do_not_stand_for_each_other() -> None:
    blocks = len(analysed("gpt").blocks.blocks)
    found = analysed("gpt").skeletons.find([0] * blocks, share=ANY)
    assert found == skeletons("gpt")
    # Each layer is another one.
    assert analysed("gpt").skeletons.find(range(blocks), share=ANY) is None
    # The second half of the layers is another kind, with skeletons of its own.
    halves = analysed("gpt", 16).skeletons.find([block // 33 for block in range(67)], share=ANY)
    assert halves is not None
    assert len(halves.longer) == 2


def test_a_program_that_is_hardly_deeper_than_its_skeletons_has_none() -> None:
    assert analysed("gpt").skeletons.find() is None
    assert analysed("gpt", 24).skeletons.find() is not None


def test_a_model_without_repetition_has_no_skeleton() -> None:
    def step(v: Any, w: Any, x: Any) -> Any:
        return jax.grad(lambda v: jnp.sum(jnp.tanh(x @ v) @ w))(v)

    program = AnalysedProgram(
        lower(step, (np.ones((8, 16), np.float32), np.ones((16, 4), np.float32), np.ones((8, 8), np.float32)))
    )
    assert program.skeletons.find(share=ANY) is None


def clipped(weights: Any, x: Any) -> Any:
    """A step whose update of each layer depends on the gradients of all."""

    def loss(weights: Any) -> Any:
        y = x
        for weight in weights:
            y = jnp.tanh(y @ weight)
        return jnp.mean(y**2)

    gradients = jax.grad(loss)(weights)
    norm = jnp.sqrt(sum(jnp.sum(each**2) for each in gradients))
    return [
        weight - 0.1 * gradient / jnp.maximum(norm, 1.0) for weight, gradient in zip(weights, gradients, strict=True)
    ]


def layers_module(layers: int) -> HloModule:
    def flat(*args: Any) -> Any:
        return tuple(clipped(args[:-1], args[-1]))

    arrays = (*[np.ones((WIDTH, WIDTH), np.float32)] * layers, np.ones((ROWS, WIDTH), np.float32))
    return lower(flat, arrays, donated=(True,) * layers + (False,))


def test_a_norm_over_all_layers_is_one_over_those_that_are_left() -> None:
    module = layers_module(12)
    program = AnalysedProgram(module)
    found = Skeletons(module, program.blocks).find(share=ANY)
    assert found is not None
    mesh = LogicalMesh((8,))
    subprograms = find_block_candidates(program.subprograms, mesh)
    for skeleton in found.all:
        strategies = [subprograms[block].candidates[0].strategy for block in skeleton.stands_for]
        planned = with_plan(skeleton.module, skeleton.blocks, mesh, strategies)
        count = len(skeleton.module.shape.parameters) - 1
        rng = np.random.default_rng(3)
        weights = [rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 4 for _ in range(count)]
        x = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
        assert planned.partitioned is not None
        results = run(planned, planned.partitioned, [*weights, x])
        assert all(np.isfinite(np.asarray(each)).all() for each in results)
        assert len(results) == count
