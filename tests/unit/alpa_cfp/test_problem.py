"""The search problem of a program: what its blocks and the values between them cost."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from alpa_cfp.analysis.blocks import find_blocks
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.candidates import Unit, distinct, find_units
from alpa_cfp.costs import Rates, estimated_s
from alpa_cfp.problem import CandidateCost, make_problem
from alpa_cfp.search import SearchProblem, search
from alpa_on_jax.xla_extension.hlo_module import HloModule
from alpa_on_jax.xla_extension.sharding import LogicalMesh
from unit.alpa_on_jax.xla_extension.helpers import lower

MESH = LogicalMesh((8,))
RATES = Rates()
X = np.ones((64, 64), np.float32)


def layers(x: Any, v: Any, w: Any) -> Any:
    return jnp.tanh(x @ v) @ w


def update(w: Any, v: Any, x: Any) -> Any:
    """Two steps of which the second uses what the first keeps."""
    return w - 0.1 * (x.T @ x), jnp.tanh(x @ w) @ v


def problem_of(module: HloModule) -> tuple[tuple[Unit, ...], SearchProblem]:
    """The units and the problem, with estimated costs."""
    blocks = find_blocks(read_graph(module.bytecode))
    units = find_units(module, blocks, MESH)
    costs = [
        [CandidateCost(estimated_s(c.module.partitioned, RATES), 0) for c in unit.candidates if c.module.partitioned]
        for unit in units
    ]
    return units, make_problem(module, blocks.graph, units, costs, RATES)


def test_a_block_is_a_variable_and_blocks_that_exchange_values_are_joined() -> None:
    units, problem = problem_of(lower(layers, (X, X, X)))
    assert len(problem.variables) == len(units) == 2
    assert [(edge.first, edge.second) for edge in problem.edges] == [("block 0", "block 1")]


def test_what_one_block_leaves_as_the_next_one_needs_it_costs_nothing() -> None:
    units, problem = problem_of(lower(layers, (X, X, X)))
    (edge,) = problem.edges
    first, second = (unit.candidates for unit in units)
    value = units[0].outputs[0]
    for a, left in enumerate(first):
        for b, right in enumerate(second):
            produced, needed = left.outputs[0], right.inputs[units[1].inputs.index(value)]
            if produced == needed:
                assert edge.time_s[a, b] == 0
    assert edge.time_s.max() > 0


def test_equal_blocks_share_their_candidates() -> None:
    def deep(x: Any, *kernels: Any) -> Any:
        for kernel in kernels:
            x = jnp.tanh(x @ kernel)
        return x + 1

    units, _ = problem_of(lower(deep, (X,) * 6))
    # The first one reads a parameter, the last one is followed by more.
    assert [unit.kind for unit in units] == [0, 1, 1, 1, 4]
    assert units[1].candidates is units[2].candidates is units[3].candidates
    assert len(distinct(units)) == sum(len(units[number].candidates) for number in (0, 1, 4))


def test_a_donated_parameter_is_state_of_the_block_that_uses_it_first() -> None:
    units, problem = problem_of(lower(update, (X, X, X), donated=(True, False, False)))
    state = np.array([variable.state_bytes.max() for variable in problem.variables])
    assert sorted(state)[-1] == X.nbytes
    assert sum(state > 0) == 1
    assert len(units) == len(problem.variables)


@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.125])
def test_a_plan_within_a_budget_keeps_to_it(fraction: float) -> None:
    _, problem = problem_of(lower(update, (X, X, X), donated=(True, False, False)))
    budget = int(X.nbytes * fraction)
    (solution,) = search(problem, budget)
    assert solution.memory.total <= budget
