"""Solve the ILP with alpa's own solver, `alpa.shard_parallel.auto_sharding._call_solver_serialized_args`.

Takes nodes, their cost graph, aliases and live values; gives the strategy of each node and the objective. What alpa's
solver is given and in which form is in `CallSolver` of tensorflow-alpa's auto_sharding.cc; it minimises the sum of node
and edge costs, under one choice a node, equal specs for aliases, and the memory budget wherever a contraction runs.
"""

import logging
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from alpa_on_jax import errors
from alpa_on_jax.xla_extension.auto_sharding.communication import INFINITY_COST
from alpa_on_jax.xla_extension.auto_sharding.cost_graph import CostGraph
from alpa_on_jax.xla_extension.auto_sharding.graph import Instruction
from alpa_on_jax.xla_extension.auto_sharding.strategies import Node, Strategy

logger = logging.getLogger(__name__)

# The time limit that is written in alpa's solver.
TIME_LIMIT_S = 600.0
_NAMED_AT_MOST = 4


@dataclass(frozen=True, slots=True)
class Solution:
    """A solution of the ILP.

    Attributes:
        choices: For each node the number of its own strategy.
        objective: The sum of all costs.
        nodes: The node of each value.
    """

    choices: tuple[int, ...]
    objective: float
    nodes: dict[Instruction, Node]

    def strategy(self, instruction: Instruction) -> Strategy:
        """The strategy of a value."""
        node = self.nodes[instruction]
        return node.strategies[self.choices[node.index]]


@dataclass(frozen=True, slots=True)
class Problem:
    """The ILP in the form of alpa's solver.

    Attributes:
        memory_budget_bytes: What the live values may take; None without limit.
        lengths: The number of choices of each node.
        follow: For each node the node it is merged into, or -1.
        edges: Pairs of nodes.
        aliases: Pairs of nodes.
        live: For each node, the nodes whose values are live when it is computed; empty for those without a limit.
        compute, communication, memory_bytes: Costs of the choices of each node.
        edge_costs: For each edge, costs [choices of i, choices of j].
        alias_costs: For each alias, 1 where the choices have different specs, else 0.
    """

    memory_budget_bytes: float | None
    lengths: np.ndarray
    follow: np.ndarray
    edges: np.ndarray
    aliases: np.ndarray
    live: tuple[tuple[int, ...], ...]
    compute: tuple[np.ndarray, ...]
    communication: tuple[np.ndarray, ...]
    memory_bytes: tuple[np.ndarray, ...]
    edge_costs: tuple[np.ndarray, ...]
    alias_costs: tuple[np.ndarray, ...]

    @property
    def num_variables(self) -> int:
        """Binary variables of nodes and edges, as alpa's solver makes them."""
        nodes = int(sum(n for n, follow in zip(self.lengths, self.follow, strict=True) if follow < 0 and n > 1))
        sizes = (self.lengths[i] * self.lengths[j] for i, j in self.edges if min(self.lengths[i], self.lengths[j]) > 1)
        return nodes + int(sum(sizes))


def make_problem(
    nodes: Sequence[Node],
    costs: CostGraph,
    aliases: Sequence[tuple[Node, Node]],
    live: Sequence[Sequence[Node]],
    memory_budget_bytes: float | None,
) -> Problem:
    """The ILP over `nodes` (see `Problem`; `live` has an entry for each node)."""

    def of_choices(node: Node, values: np.ndarray) -> np.ndarray:
        reindexing = costs.reindexing[node.index]
        return values if reindexing is None else values[reindexing]

    pairs = _alias_pairs(costs, aliases)
    return Problem(
        memory_budget_bytes,
        lengths=np.array(
            [len(node.strategies if r is None else r) for node, r in zip(nodes, costs.reindexing, strict=True)],
            np.int32,
        ),
        follow=np.array(costs.follow, np.int32),
        edges=np.array(list(costs.edges), np.int32).reshape(-1, 2),
        aliases=np.array(list(pairs), np.int32).reshape(-1, 2),
        live=tuple(tuple(node.index for node in values) for values in live),
        compute=tuple(of_choices(node, node.compute_cost) for node in nodes),
        communication=tuple(
            of_choices(node, node.communication_cost + extra)
            for node, extra in zip(nodes, costs.extra_cost, strict=True)
        ),
        memory_bytes=tuple(of_choices(node, node.memory_bytes) for node in nodes),
        edge_costs=tuple(costs.edges.values()),
        alias_costs=tuple(pairs.values()),
    )


def _alias_pairs(costs: CostGraph, aliases: Sequence[tuple[Node, Node]]) -> dict[tuple[int, int], np.ndarray]:
    """Pairs of nodes with the choices that exclude each other, since aliased values must have the same spec."""
    pairs: dict[tuple[int, int], np.ndarray] = {}
    for pair in aliases:
        ends = []
        for node in pair:
            follow, reindexing = costs.follow[node.index], costs.reindexing[node.index]
            specs = node.specs if reindexing is None else tuple(node.specs[k] for k in reindexing)
            ends.append((node.index if follow < 0 else follow, specs))
        (i, first), (j, second) = sorted(ends, key=lambda end: end[0])
        differs = np.array([[a != b for b in second] for a in first], dtype=float)
        if differs.all():
            raise errors.AutoShardingInfeasibleError.aliases(pair[0].instruction.shape)
        if i == j:
            differs = np.diag(np.diag(differs))
        if differs.any():
            pairs[i, j] = np.maximum(differs, pairs.get((i, j), 0.0))
    return pairs


def solve(problem: Problem, nodes: dict[Instruction, Node], costs: CostGraph) -> Solution:
    """Let alpa's solver choose.

    Where its time is up it gives the best choice it has found by then, and where the options contradict each other one
    that does what they exclude: both are used, and logged as warnings.

    Raises:
        AutoShardingInfeasibleError: no choice fits into the memory budget, or the solver found none in its time.
        SolverMissingError: there is no CBC.
    """
    from alpa.shard_parallel import auto_sharding

    started = time.perf_counter()
    try:
        values, _, objective, _ = auto_sharding._call_solver_serialized_args(*_serialized(problem))
    except RuntimeError as error:
        if "memory budget" not in str(error):
            raise
        # Alpa's solver says this of any problem without a solution.
        if problem.memory_budget_bytes is None:
            raise errors.AutoShardingInfeasibleError.conflicting_aliases() from error
        raise errors.AutoShardingInfeasibleError.memory(problem.memory_budget_bytes) from error
    except AssertionError as error:
        if "install ILP solvers" in str(error):
            raise errors.SolverMissingError() from error
        status = _status_without_choices(error)
        if status is None:
            raise
        seconds = time.perf_counter() - started
        raise errors.AutoShardingInfeasibleError.no_solution(status, seconds, TIME_LIMIT_S) from error
    seconds = time.perf_counter() - started
    if seconds >= TIME_LIMIT_S:
        logger.warning(
            "auto-sharding: the ILP solver took %.0f s and its time limit is %.0f s: what it found is used, which may "
            "not be the cheapest sharding",
            seconds, TIME_LIMIT_S,
        )  # fmt: skip
    objective = max(float(objective), 0.0)  # alpa's solver says -1 where nothing costs anything
    logger.info(
        "auto-sharding: %d values, %d variables, objective %.2f, solved in %.2f s",
        len(nodes), problem.num_variables, objective, seconds,
    )  # fmt: skip
    choices = tuple(costs.own_strategy(i, int(values[i])) for i in range(len(nodes)))
    solution = Solution(choices, objective, nodes)
    if objective >= INFINITY_COST:
        _warn_of_contradictions(solution)
    return solution


def _status_without_choices(error: AssertionError) -> str | None:
    """How CBC ended, in PuLP's words, if `error` is how alpa's solver says that CBC left nodes without a choice.

    It asserts that each node has exactly one, without a message, so it is known by its place. A choice that is not one
    although CBC says that it has found a solution is another matter: None.
    """
    import pulp

    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if frames[-1].f_code.co_name != "get_non_zero_index":
        return None
    status = frames[-2].f_locals["prob"].status
    return None if status == pulp.LpStatusOptimal else pulp.LpStatus[status]


def _warn_of_contradictions(solution: Solution) -> None:
    """Name the values whose choice costs what is to be excluded; a sum that is as high without any is no matter."""
    choices = solution.choices
    excluded = [
        node.instruction
        for node in solution.nodes.values()
        if node.compute_cost[choices[node.index]] + node.communication_cost[choices[node.index]] >= INFINITY_COST
        or any(cost[choices[source.index], choices[node.index]] >= INFINITY_COST for source, cost in node.edges)
    ]
    if not excluded:
        return
    names = [f"{instruction.opcode} {list(instruction.shape)}" for instruction in excluded[:_NAMED_AT_MOST]]
    logger.warning(
        "auto-sharding: the program, the mesh and the options exclude each other: %d of %d values cannot be computed "
        "without communication that Alpa's costs exclude (%s%s). The results are right, but communication there is not "
        "limited, which may be slow. Allow more (allow_mixed_mesh_shape, allow_all_gather, allow_all_to_all, no "
        "force_data_parallel, force_batch_dim_to_mesh_dim=-1) or take a mesh of one axis: on two, the batch stays on "
        "the first one, and there is no all-to-all",
        len(excluded), len(solution.nodes), ", ".join(names), ", ..." if len(excluded) > len(names) else "",
    )  # fmt: skip


def _serialized(problem: Problem) -> tuple[object, ...]:
    """The arguments of alpa's solver: flat arrays."""
    budget = problem.memory_budget_bytes
    live = [np.array(nodes, np.int32) for nodes in problem.live]
    return (
        len(problem.lengths),
        -1 if budget is None else budget,
        problem.lengths,
        problem.follow,
        problem.edges.ravel(),
        problem.aliases.ravel(),
        _flat([np.array([len(nodes) for nodes in live], np.int32), *live], np.int32),
        _flat(problem.compute),
        _flat(problem.communication),
        _flat(problem.memory_bytes),
        _flat([cost.ravel() for cost in problem.edge_costs]),
        _flat([cost.ravel() for cost in problem.alias_costs]),
    )


def _flat(arrays: Sequence[np.ndarray], dtype: type = np.float64) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype), *arrays]).astype(dtype)
