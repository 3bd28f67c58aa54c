"""The search problem of a program: what its blocks and the values between them cost."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_cfp.analysis.blocks import find_blocks
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.candidates.block_candidates import BlockCandidates, distinct, find_block_candidates
from alpa_cfp.costs import Rates, estimated_s
from alpa_cfp.extraction.subprograms import find_subprograms
from alpa_cfp.search import MemoryBudgetError, SearchProblem, search
from alpa_cfp.select.search_problem import find_boundaries
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy
from unit.alpa_cfp.spmd.helpers import lower
from unit.alpa_cfp.training_steps import estimated_problem

MESH = LogicalMesh((8,))
RATES = Rates()
X = np.ones((64, 64), np.float32)


def layers(x: Any, v: Any, w: Any) -> Any:
    return jnp.tanh(x @ v) @ w


def update(w: Any, v: Any, x: Any) -> Any:
    """Two steps of which the second uses what the first keeps."""
    return w - 0.1 * (x.T @ x), jnp.tanh(x @ w) @ v


def problem_of(module: HloModule) -> tuple[tuple[BlockCandidates, ...], SearchProblem]:
    """The candidates of each block and the problem, with estimated costs."""
    blocks = find_blocks(read_graph(module.bytecode))
    block_candidates = find_block_candidates(find_subprograms(module, blocks), MESH)
    times = [[estimated_s(candidate.work, RATES) for candidate in block.candidates] for block in block_candidates]
    return block_candidates, estimated_problem(
        block_candidates, find_boundaries(module, blocks, block_candidates), times, RATES
    )


def test_a_block_is_a_variable_and_blocks_that_exchange_values_are_joined() -> None:
    block_candidates, problem = problem_of(lower(layers, (X, X, X)))
    assert len(problem.variables) == len(block_candidates) == 2
    assert [(edge.first, edge.second) for edge in problem.edges] == [("block 0", "block 1")]


def test_what_one_block_leaves_as_the_next_one_needs_it_costs_nothing() -> None:
    block_candidates, problem = problem_of(lower(layers, (X, X, X)))
    (edge,) = problem.edges
    first, second = (block.candidates for block in block_candidates)
    value = block_candidates[0].outputs[0]
    for a, left in enumerate(first):
        for b, right in enumerate(second):
            produced, needed = left.outputs[0], right.inputs[block_candidates[1].inputs.index(value)]
            if produced == needed:
                assert edge.time_s[a, b] == 0
    assert edge.time_s.max() > 0


def test_equal_blocks_share_their_candidates() -> None:
    def deep(x: Any, *kernels: Any) -> Any:
        for kernel in kernels:
            x = jnp.tanh(x @ kernel)
        return x + 1

    block_candidates, _ = problem_of(lower(deep, (X,) * 6))
    # The first one reads a parameter, the last one is followed by more.
    assert [block.kind for block in block_candidates] == [0, 1, 1, 1, 4]
    assert block_candidates[1].candidates is block_candidates[2].candidates is block_candidates[3].candidates
    assert len(distinct(block_candidates)) == sum(len(block_candidates[number].candidates) for number in (0, 1, 4))


def test_what_a_step_holds_throughout_counts_once() -> None:
    _, problem = problem_of(lower(update, (X, X, X), donated=(True, False, False)))
    # Three parameters and a result; the other result takes a parameter's place.
    assert sum(variable.state_bytes.max() for variable in problem.variables) == 4 * X.nbytes
    assert sum(variable.state_bytes.min() for variable in problem.variables) >= 4 * X.nbytes / MESH.num_devices


def test_what_waits_for_the_backward_pass_is_saved_by_the_block_that_leaves_it() -> None:
    def step(v: Any, w: Any, x: Any) -> Any:
        def loss(parameters: tuple[Any, Any]) -> Any:
            return jnp.sum(jnp.tanh(x @ parameters[0]) @ parameters[1])

        return jax.grad(loss)((v, w))

    block_candidates, problem = problem_of(lower(step, (X, X, X)))
    whole = [
        next(i for i, c in enumerate(block.candidates) if c.strategy == BlockStrategy((None,)))
        for block in block_candidates
    ]
    # The hyperbolic tangent's result: the product behind it and its own derivative need it again.
    assert problem.memory(whole).saved == X.nbytes


@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.0])
def test_a_plan_within_a_budget_keeps_to_it(fraction: float) -> None:
    _, problem = problem_of(lower(update, (X, X, X), donated=(True, False, False)))
    with pytest.raises(MemoryBudgetError) as caught:
        search(problem, 1)
    least, free = caught.value.least_bytes, search(problem, None).memory.total
    budget = int(least + fraction * (free - least))
    solution = search(problem, budget)
    assert solution.memory.total <= budget
