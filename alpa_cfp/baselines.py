"""The plans that people write by hand, as choices among a program's candidates.

Takes units and a search problem over them; gives named plans: data parallelism, ZeRO-2 and ZeRO-3 (arXiv 1910.02054),
Megatron-style tensor parallelism (arXiv 1909.08053), alone and beside data parallelism. Each is the plan that moves
least between blocks within what its name allows for each of them, and of those the cheapest: a step that is split by
samples here and by positions there is no data parallelism. A block with no candidate of that kind may have any. They
are there to be timed beside what the search has found, since predictions are never exact.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from alpa_cfp.analysis.blocks import ParallelBlock
from alpa_cfp.analysis.contractions import Side
from alpa_cfp.candidates import Unit
from alpa_cfp.search import Edge, NoPlanError, SearchProblem, Solution, Variable, search
from alpa_cfp.strategies import BlockStrategy, Kept
from alpa_on_jax.xla_extension.sharding import LogicalMesh

# Whether a block may have a strategy.
Allows = Callable[[ParallelBlock, BlockStrategy], bool]
_SAMPLES = (Side.LEFT, Side.BATCH)
# How much more moving a value counts than computing it.
_MOVING = 1000.0
_PARAMETERS = (Side.RIGHT, Side.REDUCTION, Side.BATCH)


def baselines(
    blocks: Sequence[ParallelBlock], units: Sequence[Unit], problem: SearchProblem, mesh: LogicalMesh
) -> dict[str, Solution]:
    """The plans by name; equal ones under the first name only.

    Args:
        blocks: The blocks of the program.
        units: Its units.
        problem: Their search problem.
        mesh: The logical mesh.
    """
    axes = [axis.index for axis in mesh.axes]
    wanted: dict[str, Allows] = {
        "data parallel": _split(axes, 0, Kept.AS_USED),
        "ZeRO-2": _split(axes, 0, Kept.MOMENTS_SPLIT),
        "ZeRO-3": _split(axes, 0, Kept.ALL_SPLIT),
        "Megatron": _split(axes, len(axes), Kept.AS_USED),
        "data parallel and Megatron": _split(axes, 1, Kept.AS_USED),
    }
    found: dict[str, Solution] = {}
    for name, allows in wanted.items():
        try:
            (plan,) = search(_restricted(blocks, units, problem, allows), None)
        except NoPlanError:
            continue
        if plan.choices not in {other.choices for other in found.values()}:
            found[name] = problem.solution(plan.choices)
    return found


def _split(axes: Sequence[int], tensor: int, kept: Kept) -> Allows:
    """Samples along the first of `axes`, parameters along the last `tensor` ones."""

    def allows(block: ParallelBlock, strategy: BlockStrategy) -> bool:
        factors = [strategy.factors[axis] for axis in axes]
        sides = [None if factor is None else block.factors[factor].side for factor in factors]
        samples, parameters = sides[: len(axes) - tensor], sides[len(axes) - tensor :]
        by_samples = all(side in _SAMPLES for side in samples)
        return by_samples and all(side in _PARAMETERS for side in parameters) and strategy.kept is kept

    return allows


def _restricted(
    blocks: Sequence[ParallelBlock], units: Sequence[Unit], problem: SearchProblem, allows: Allows
) -> SearchProblem:
    """`problem` without the choices that are not allowed, and with values that hardly want to be moved."""
    variables = []
    for unit, variable in zip(units, problem.variables, strict=True):
        allowed = np.array([allows(blocks[unit.block], candidate.strategy) for candidate in unit.candidates])
        allowed &= np.isfinite(variable.time_s)
        times = np.where(allowed, variable.time_s, math.inf) if allowed.any() else variable.time_s
        variables.append(Variable(variable.name, times))
    edges = (Edge(each.first, each.second, _MOVING * each.time_s) for each in problem.edges)
    return SearchProblem(tuple(variables), tuple(edges))
