"""Tofu's search: recursive partitioning of the devices (arXiv 1807.08887, section 5).

Takes the candidates of a program on meshes of more and more axes; gives a strategy for each block. The devices are
halved again and again: an axis of 8 is three halvings. (Of an axis that 2 does not divide each prime factor is a step.)
In each step each block splits one of its factors between the halves, so that the cost of the program with all splits so
far is least; the steps' choices compose. Equal blocks have one choice, as Tofu coalesces unrolled time steps when it
coarsens the graph. Invariant: a step keeps what the steps before it chose.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from alpa_cfp.analysis.blocks import ParallelBlock
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.search import MEMORY_BYTES, Edge, SearchProblem, Variable, search
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding, strategies_of
from alpa_cfp_bench.rivals.space import RivalPlan, Space

logger = logging.getLogger(__name__)

Kept = Callable[[ParallelBlock, Sequence[BlockStrategy]], Sequence[bool]]
_STATES = list(StateSharding)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one search.

    Attributes:
        limit_s: Seconds.
        memory_bytes: The bytes of its tables.
    """

    limit_s: float = math.inf
    memory_bytes: int = MEMORY_BYTES


def halvings(shape: Sequence[int]) -> tuple[int, ...]:
    """The numbers of parts of the steps: the prime factors of each axis, the outer axes first."""
    found: list[int] = []
    for size in shape:
        divisor = 2
        while size > 1:
            while size % divisor:
                divisor += 1
            found.append(divisor)
            size //= divisor
    return tuple(found)


def all_is_split(block: ParallelBlock, strategies: Sequence[BlockStrategy]) -> list[bool]:
    """Which strategies split all that Tofu splits: the block along the last axis, and its state over all devices.

    Tofu splits each operator and each tensor in each step; a weight that is used whole is gathered for that. A block is
    replicated only if none of its factors can be split.
    """
    del block
    splits = [strategy.factors[-1] is not None for strategy in strategies]
    most: dict[tuple[int | None, ...], int] = {}
    for strategy in strategies:
        state = _STATES.index(strategy.state_sharding)
        most[strategy.factors] = max(most.get(strategy.factors, 0), state)
    return [
        (split or not any(splits)) and _STATES.index(strategy.state_sharding) == most[strategy.factors]
        for strategy, split in zip(strategies, splits, strict=True)
    ]


def any_split(block: ParallelBlock, strategies: Sequence[BlockStrategy]) -> list[bool]:
    """All strategies: for costs by which splitting pays or does not."""
    del block
    return [True] * len(strategies)


def coalesced(problem: SearchProblem, kinds: Sequence[int]) -> SearchProblem:
    """The problem in which equal blocks have one variable, in the order of the first ones.

    Args:
        problem: One variable for each block; those of a kind have the same choices.
        kinds: For each block its kind.
    """
    times: dict[int, np.ndarray] = {}
    between: dict[tuple[int, int], np.ndarray] = {}
    for kind, variable in zip(kinds, problem.variables, strict=True):
        times[kind] = times.get(kind, 0.0) + variable.time_s
    for edge, (first, second) in zip(problem.edges, problem.ends, strict=True):
        ends = kinds[first], kinds[second]
        if ends[0] == ends[1]:
            times[ends[0]] = times[ends[0]] + np.diagonal(edge.time_s)
        else:
            is_forward = ends[0] < ends[1]
            pair = ends if is_forward else (ends[1], ends[0])
            between[pair] = between.get(pair, 0.0) + (edge.time_s if is_forward else edge.time_s.T)
    variables = tuple(Variable(f"kind {kind}", time_s) for kind, time_s in times.items())
    edges = tuple(Edge(f"kind {a}", f"kind {b}", table) for (a, b), table in sorted(between.items()))
    return SearchProblem(variables, edges)


def expanded(choices: Sequence[int], kinds: Sequence[int]) -> tuple[int, ...]:
    """The choice of each block, from those of `coalesced`."""
    of_kind = dict(zip(dict.fromkeys(kinds), choices, strict=True))
    return tuple(of_kind[kind] for kind in kinds)


def bisected(
    program: AnalysedProgram,
    mesh: LogicalMesh,
    problem_of: Callable[[Space], SearchProblem],
    kept: Kept,
    limits: Limits | None = None,
) -> RivalPlan:
    """The plan of recursive partitioning.

    Its mesh has an axis for each step. The cost is that of the last step.

    Args:
        program: The program.
        mesh: The mesh whose devices are divided.
        problem_of: What the plans among the candidates of a step cost.
        kept: Which strategies of a block a step may choose, of those that keep what the steps before it chose.
        limits: Those of the search of a step; None for as long as it takes.
    """
    limits, parts = limits or Limits(), halvings(mesh.shape)
    plan = RivalPlan(LogicalMesh(()), (BlockStrategy(()),) * len(program.blocks.blocks), 0.0)
    for step in range(1, len(parts) + 1):
        space = continued(program, LogicalMesh(parts[:step]), plan).only(kept)
        problem, kinds = problem_of(space), space.kinds
        found = search(
            coalesced(problem, kinds), None, time_limit_s=limits.limit_s, memory_limit_bytes=limits.memory_bytes
        )
        choices = expanded(found.choices, kinds)
        plan = space.plan(choices, problem.time(choices))
        logger.info("Tofu: step %d of %d, a cost of %.6g", step, len(parts), plan.cost)
    return plan


def continued(program: AnalysedProgram, mesh: LogicalMesh, plan: RivalPlan) -> Space:
    """Returns the candidates that split what they may along the last axis of a mesh, and all else as a plan does."""

    def strategies(number: int, block: ParallelBlock) -> list[BlockStrategy]:
        before = plan.strategies[number].factors
        found = [each for each in strategies_of(block, mesh.shape) if each.factors[:-1] == before]
        # After three runs of axes there may be no candidate that goes on: then nothing more is split.
        return found or [BlockStrategy((*before, None))]

    return Space.of(program, mesh, strategies)
