"""The plans that people write by hand for a GPT are among CFP's, with the communication that the literature counts.

Data parallelism sums all gradients once a step. Megatron-LM (arXiv 1909.08053, section 3) splits attention and the
first half of the MLP by columns and what follows each by rows: two all-reduces a layer forward, two backward, no more.
"""

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache

import jax
import pytest

from alpa_cfp.analysis.blocks import Blocks, ParallelBlock, find_blocks
from alpa_cfp.analysis.contractions import Side
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.apply.annotate import annotate
from alpa_cfp.candidates.block_candidates import find_block_candidates
from alpa_cfp.costs import Rates, estimated_s
from alpa_cfp.extraction.subprograms import find_subprograms
from alpa_cfp.search import SearchProblem, Variable, search
from alpa_cfp.select.search_problem import find_boundaries
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import partition
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.sizes import TINY
from unit.alpa_cfp.training_steps import estimated_problem

MESH = LogicalMesh((8,))
LAYERS = TINY.layers
# The token and the position embedding come before the layers, the head after them.
BEFORE, AFTER = 2, 1
WHOLE = BlockStrategy((None,))


@dataclass(frozen=True)
class AnalysedProgram:
    """A training step of a GPT."""

    text: str
    donated: tuple[bool, ...]

    def module(self) -> HloModule:
        return HloModule.from_stablehlo("gpt", self.text, self.donated)


@cache
def gpt() -> tuple[AnalysedProgram, Blocks]:
    model = build("gpt")
    step = jax.jit(train_step(model, jax.value_and_grad), keep_unused=True, donate_argnums=(0,))
    lowered = step.trace(model.state, model.batch).lower(lowering_platforms=("cpu",))
    counts = (len(jax.tree.leaves(model.state)), len(jax.tree.leaves(model.batch)))
    program = AnalysedProgram(str(lowered.compiler_ir("stablehlo")), (True,) * counts[0] + (False,) * counts[1])
    return program, find_blocks(read_graph(program.module().bytecode))


def split(block: ParallelBlock, side: Side) -> BlockStrategy:
    """The strategy that splits the first factor of `side` over all devices."""
    usable = (
        i
        for i, factor in enumerate(block.factors)
        if factor.side is side and factor.usable and factor.max_shards % 8 == 0
    )
    return BlockStrategy((next(usable),))


def data_parallel(blocks: Blocks) -> tuple[BlockStrategy, ...]:
    return tuple(split(block, Side.LEFT) for block in blocks.blocks)


def megatron(blocks: Blocks) -> tuple[BlockStrategy, ...]:
    layers = blocks.blocks[BEFORE:-AFTER]
    sides = (Side.RIGHT, Side.REDUCTION) * (len(layers) // 2)
    inside = (split(block, side) for block, side in zip(layers, sides, strict=True))
    return (*(WHOLE,) * BEFORE, *inside, *(WHOLE,) * AFTER)


def communication(strategies: tuple[BlockStrategy, ...]) -> Counter[str]:
    """The collectives of a step, by kind."""
    program, blocks = gpt()
    module = program.module()
    annotate(module, blocks, MESH, strategies)
    partitioned = partition(module)
    assert partitioned.partitioner == "shardy"
    return Counter(collective.kind for collective in partitioned.collectives)


def test_a_gpt_has_four_blocks_a_layer() -> None:
    assert len(gpt()[1].blocks) == BEFORE + 4 * LAYERS + AFTER


def test_data_parallelism_sums_the_gradients_at_once() -> None:
    assert communication(data_parallel(gpt()[1])) == {"all-reduce": 1}


def test_megatron_has_four_all_reduces_a_layer_and_no_other_communication() -> None:
    assert communication(megatron(gpt()[1])) == {"all-reduce": 4 * LAYERS}


def without(problem: SearchProblem, variable: int, choice: int) -> SearchProblem:
    """The problem, without memory, in which a variable cannot have a choice."""
    times = [variable.time_s.copy() for variable in problem.variables]
    times[variable][choice] = math.inf
    variables = (Variable(each.name, time) for each, time in zip(problem.variables, times, strict=True))
    return SearchProblem(tuple(variables), problem.edges)


@pytest.mark.slow
def test_the_two_best_estimated_plans_of_a_gpt_are_data_parallelism_and_megatrons() -> None:
    program, blocks = gpt()
    # As the literature counts: contractions and communication.
    module, rates = program.module(), Rates(bytes_per_s=math.inf)
    block_candidates = find_block_candidates(find_subprograms(module, blocks), MESH)
    times = [
        [
            estimated_s(each.work, rates) if each.strategy.state_sharding is StateSharding.REPLICATED else math.inf
            for each in block.candidates
        ]
        for block in block_candidates
    ]
    problem = estimated_problem(block_candidates, find_boundaries(module, blocks, block_candidates), times, rates)
    best = search(problem, None)
    # Any other plan differs from the best one in some variable.
    others = (search(without(problem, v, choice), None) for v, choice in enumerate(best.choices))
    found = (best, min(others, key=lambda plan: plan.time_s))
    plans = [
        tuple(
            block.candidates[choice].strategy for block, choice in zip(block_candidates, solution.choices, strict=True)
        )
        for solution in found
    ]
    assert plans == [data_parallel(blocks), megatron(blocks)]
