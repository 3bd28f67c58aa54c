"""The plans that people write by hand, as choices among a program's candidates.

Takes the candidates of all blocks and their search problem; gives named plans: data parallelism, ZeRO-2 and ZeRO-3
(arXiv 1910.02054), Megatron-style tensor parallelism (arXiv 1909.08053), alone and with data parallelism along the
other axis. Each name allows some strategies of each block (`_Kind`). The baseline is the plan with the least
resharding among these, and of those the cheapest: a step that is split by samples in one block and by positions in
another is not data parallel. What splits samples may replicate a small block, such as the lookup of positions that all
samples share; tensor parallelism replicates blocks that are too small to split, such as the router of a mixture of
experts. If replicating more blocks is cheaper, there is a second plan of that kind, the cheapest one. A
block without an allowed candidate may have any. Predictions are not exact, so baselines are timed beside the plans of
the search.
"""

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

import numpy as np

from alpa_cfp.analysis.blocks import ParallelBlock
from alpa_cfp.analysis.contractions import SAMPLES, Side
from alpa_cfp.candidates.block_candidates import BlockCandidates
from alpa_cfp.plan.caveats import Caveats
from alpa_cfp.search import MEMORY_BYTES, NoPlanError, SearchProblem, Solution, Variable, search
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding

# The name of the plainest plan.
DATA_PARALLEL = "data parallel"
_PARAMETERS = (Side.RIGHT, Side.REDUCTION, Side.BATCH)
# How much more moving a value counts than computing it, where a plan is to move least.
_MOVING = 1000.0
# A plan is good if no other one of its kind can be cheaper by more than this share.
_CLOSE = 0.002
# A block with less than this part of the median block's contractions is small.
_SMALL = 0.1


@dataclass(frozen=True)
class _Kind:
    """The strategies that a baseline allows.

    Attributes:
        samples: The mesh axes that split samples; small blocks may be replicated along them, too.
        parameters: The mesh axes that split parameters; small blocks may be replicated along them.
        kept: The state sharding of all blocks.
        cheapest: Whether any block may be replicated along `parameters`, and the plan of least time is selected, not
            the one with the least communication.
    """

    samples: Sequence[int]
    parameters: Sequence[int] = ()
    kept: StateSharding = StateSharding.REPLICATED
    cheapest: bool = False

    def allows(self, block: ParallelBlock, small: bool, strategy: BlockStrategy) -> bool:
        """Whether this baseline allows a strategy of a block."""
        return strategy.state_sharding is self.kept and self.splits(block, small, strategy)

    def splits(self, block: ParallelBlock, small: bool, strategy: BlockStrategy) -> bool:
        """Whether this baseline allows what a strategy of a block splits."""
        sides = [None if factor is None else block.factors[factor].side for factor in strategy.factors]
        samples = (*SAMPLES, None) if small else SAMPLES
        parameters = (*_PARAMETERS, None) if small or self.cheapest else _PARAMETERS
        return (
            strategy.sums_along is None
            and all(sides[axis] in samples for axis in self.samples)
            and all(sides[axis] in parameters for axis in self.parameters)
        )


def baselines(
    blocks: Sequence[ParallelBlock],
    block_candidates: Sequence[BlockCandidates],
    problem: SearchProblem,
    mesh: LogicalMesh,
    *,
    limit_s: float = math.inf,
    memory_bytes: int = MEMORY_BYTES,
    caveats: Caveats | None = None,
    thorough: bool = True,
    names: Container[str] | None = None,
) -> dict[str, Solution]:
    """The plans by name; equal ones under the first name only.

    Args:
        blocks: The blocks of the program.
        block_candidates: The candidates of each block.
        problem: Their search problem.
        mesh: The logical mesh.
        limit_s, memory_bytes: Of the search for each of them.
        caveats: Where it is said which there are not.
        thorough: Whether each is the best of its kind; otherwise it is a good one where to find the best takes long.
        names: The names of those that are wanted; None for all.
    """
    caveats = Caveats() if caveats is None else caveats
    found: dict[str, Solution] = {}
    for name, kind in _kinds([axis.index for axis in mesh.axes]).items():
        if names is not None and name not in names:
            continue
        try:
            plan = search(
                _restricted(blocks, block_candidates, problem, kind),
                None,
                time_limit_s=limit_s,
                memory_limit_bytes=memory_bytes,
                enough=0.0 if thorough else _CLOSE,
                thorough=thorough,
            )
        except NoPlanError:
            caveats.note(f"{name} is not among the plans that are compared: no such plan can be run")
            continue
        if plan.choices not in {other.choices for other in found.values()}:
            found[name] = problem.solution(plan.choices)
    return found


def needed_by_hand(
    mesh: LogicalMesh, block: ParallelBlock, every: Sequence[BlockStrategy], given: Sequence[BlockStrategy]
) -> list[BlockStrategy]:
    """Strategies of a block that baselines need for which none of the given ones can be taken.

    Those that replicate blocks where it pays can do without: they choose among what is given.

    Args:
        mesh: The logical mesh.
        block: The block.
        every: All its strategies.
        given: Those for which there are candidates.
    """
    found = dict[BlockStrategy, None]()
    for kind in _kinds([axis.index for axis in mesh.axes]).values():
        if not any(kind.splits(block, True, each) for each in given):
            found |= dict.fromkeys(each for each in every if kind.splits(block, True, each))
    return list(found)


def _kinds(axes: Sequence[int]) -> dict[str, _Kind]:
    """The kinds of plans for a mesh with these axes, by name."""
    kinds = {
        DATA_PARALLEL: _Kind(axes),
        "ZeRO-2": _Kind(axes, kept=StateSharding.ZERO2),
        "ZeRO-3": _Kind(axes, kept=StateSharding.ZERO3),
        "Megatron": _Kind((), axes),
    }
    for own in _tensor_axes(axes):
        others = tuple(other for other in axes if other not in own)
        along = f"axis {own[0]}" if len(own) == 1 else f"axes {', '.join(map(str, own[:-1]))} and {own[-1]}"
        kinds[f"Megatron along {along}, data parallel"] = _Kind(others, own)
    tensor = {name: kind for name, kind in kinds.items() if kind.parameters}
    return kinds | {f"{name}, where it pays": replace(kind, cheapest=True) for name, kind in tensor.items()}


def _tensor_axes(axes: Sequence[int]) -> list[tuple[int, ...]]:
    """The axes along which weights are split while samples are along the others: of two each, of more the last ones,
    whose devices are closest to each other.
    """
    if len(axes) == 2:
        return [(axis,) for axis in axes]
    return [tuple(axes[start:]) for start in range(len(axes) - 1, 0, -1)]


def _restricted(
    blocks: Sequence[ParallelBlock], block_candidates: Sequence[BlockCandidates], problem: SearchProblem, kind: _Kind
) -> SearchProblem:
    """`problem` without the choices that `kind` does not allow; values hardly want to be moved, unless it is to be the
    cheapest plan.
    """
    flops = [each.candidates[0].work.flops for each in block_candidates]
    limit, variables = _SMALL * float(np.median(flops)), []
    for each, variable in zip(block_candidates, problem.variables, strict=True):
        block, small = blocks[each.block], each.candidates[0].work.flops < limit
        allowed = np.array([kind.allows(block, small, candidate.strategy) for candidate in each.candidates])
        allowed &= np.isfinite(variable.time_s)
        times = np.where(allowed, variable.time_s, math.inf) if allowed.any() else variable.time_s
        variables.append(Variable(variable.name, times))
    if kind.cheapest:
        return SearchProblem(tuple(variables), problem.edges)
    return SearchProblem(tuple(variables), tuple(each.mapped(_counted_more) for each in problem.edges))


def _counted_more(seconds: np.ndarray) -> np.ndarray:
    """Seconds of moving a value; where neighbours take less time than each by itself, nothing is moved."""
    return np.where(seconds > 0, _MOVING * seconds, seconds)
