"""Candidates whose strategies leave mesh axes unused, made only where the best plan may have them.

A block that is replicated along a mesh axis computes as many times more on each device as the axis has devices, and
gains no more than what it then need not communicate. Therefore candidates are made first of strategies that use all
axes, and of the one that splits nothing. The others have stand-ins: what is known of one from those that split more
(`_stand_in`), at its best. A search that may choose these tells which of them can be in the best plan; those are made,
and it searches again, until it chooses none. So up to a third of all candidates on two axes is never made, and up to
half on three. With a memory budget that such a best plan does not surely fit into, all are made.

Takes a program's blocks and what makes candidates; gives candidates. Invariant: if no estimate is too high by more than
the given factor, the best plan is among these candidates.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from alpa_cfp.analysis.blocks import ParallelBlock
from alpa_cfp.candidates.block_candidates import BlockCandidates, Strategies
from alpa_cfp.candidates.candidate import Candidate
from alpa_cfp.costs import Work
from alpa_cfp.search import Solution
from alpa_cfp.spmd.shardings.sharding import ArraySharding
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding

logger = logging.getLogger(__name__)

_NOTHING = Work(0.0, 0.0, ())
# A search that comes no closer to the best plan than this share met a limit.
_ENOUGH = 0.05
# A plan that is predicted to need this share of the budget surely fits.
_SURELY_FITS = 0.5


@dataclass
class UsedAxes:
    """The candidates that may be in the best plan of one program.

    Attributes:
        mesh_shape: The sizes of the mesh's axes.
        strategies: Gives all strategies of a block.
        find: Makes the candidates of some strategies of each kind of block.
        by_hand: Gives the strategies of a block that hand-written plans need, from all and those that use all axes.
        budget_bytes: The memory that a device may hold; None without limit.
        is_over: Whether the time for planning is over: then what is made is enough.
    """

    mesh_shape: tuple[int, ...]
    strategies: Callable[[ParallelBlock], Sequence[BlockStrategy]]
    find: Callable[[Strategies], Sequence[BlockCandidates]]
    by_hand: Callable[[ParallelBlock, Sequence[BlockStrategy], Sequence[BlockStrategy]], Sequence[BlockStrategy]]
    budget_bytes: int | None = None
    is_over: Callable[[], bool] = lambda: False
    # For each kind of block all its strategies, and those that are made.
    _all: dict[int, Sequence[BlockStrategy]] = field(default_factory=dict, init=False)
    _made: dict[int, set[BlockStrategy]] = field(default_factory=dict, init=False)

    def candidates(
        self, best: Callable[[Sequence[BlockCandidates]], Solution], margin: float
    ) -> Sequence[BlockCandidates]:
        """The candidates.

        Args:
            best: Gives the best plan of candidates by estimates.
            margin: By what factor a candidate may be faster than estimated; inf makes all.
        """
        if math.isinf(margin):
            return self._find_all()
        while True:
            found = self.find(self._chosen)
            stand_ins = {each.kind: self._stand_ins(each, margin) for each in found if each.kind == each.block}
            if not any(stand_ins.values()) or self.is_over():
                break
            plan = best([replace(each, candidates=(*each.candidates, *stand_ins[each.kind])) for each in found])
            if plan.gap_s > _ENOUGH * plan.time_s:
                return self._find_all()
            wanted = _wanted(found, stand_ins, plan.choices)
            if not wanted:
                if self.budget_bytes is not None and plan.memory.total > _SURELY_FITS * self.budget_bytes:
                    return self._find_all()
                break
            for kind, strategies in wanted.items():
                self._make(kind, strategies)
        made, every = (sum(map(len, each.values())) for each in (self._made, self._all))
        logger.info("CFP: %d of %d strategies are made", made, every)
        return found

    def _find_all(self) -> Sequence[BlockCandidates]:
        return self.find(lambda _, block: self.strategies(block))

    def _chosen(self, kind: int, block: ParallelBlock) -> Sequence[BlockStrategy]:
        """The strategies of a kind of block that are made: at first those that use all axes, those that cannot be split
        further, and the one that splits nothing, by which plans are judged.
        """
        if kind not in self._all:
            every = self._all[kind] = self.strategies(block)
            using_all = [each for each in every if not self._unused(each)]
            largest = (
                each for each in every if not any(_splits_more(more, each, self._unused(each)) for more in using_all)
            )
            self._made[kind] = {every[0], *using_all, *largest, *self.by_hand(block, every, using_all)}
        return [each for each in self._all[kind] if each in self._made[kind]]

    def _unused(self, strategy: BlockStrategy) -> frozenset[int]:
        """The mesh axes that a strategy leaves unused."""
        sizes = zip(strategy.factors, self.mesh_shape, strict=True)
        return frozenset(axis for axis, (factor, size) in enumerate(sizes) if factor is None and size > 1)

    def _stand_ins(self, block: BlockCandidates, margin: float) -> list[Candidate]:
        """Stand-ins for the candidates of a kind of block that are not made."""
        made = [
            each
            for each in block.candidates
            if each.strategy.state_sharding is StateSharding.REPLICATED and each.strategy.sums_along is None
        ]
        return [
            self._stand_in(strategy, made, margin)
            for strategy in self._all[block.kind]
            if strategy not in self._made[block.kind] and strategy.sums_along is None
        ]

    def _stand_in(self, strategy: BlockStrategy, made: Sequence[Candidate], margin: float) -> Candidate:
        """What is known of a candidate from those that split something along its unused axes, too.

        Its boundary is theirs without these axes. It computes and writes no less than any of them, and no less than an
        equal part of the whole block; but of the update of state each device may do an equal part (ZeRO). It
        communicates nothing, and all that it writes may be written once a step.
        """
        axes = self._unused(strategy)
        more = [each for each in made if _splits_more(each.strategy, strategy, axes)]
        whole, work = made[0], _NOTHING
        if not any(each.predicted or each.unread for each in (whole, *more)):
            devices = math.prod(self.mesh_shape)
            parts = devices // math.prod(self.mesh_shape[axis] for axis in axes)
            flops = max(whole.work.flops / parts, max(each.work.flops for each in more))
            # Results of collectives count as written, and this one may need none.
            memory = max(_micro_batch_bytes(whole) / parts, min(map(_micro_batch_bytes, more)))
            memory += whole.per_step.memory_bytes / devices
            work = Work(flops / margin, memory / margin, ())
        first = more[0]
        inputs, outputs = (tuple(_without(each, axes) for each in own) for own in (first.inputs, first.outputs))
        return replace(
            first, strategy=strategy, inputs=inputs, outputs=outputs, work=work, lower_bound=work, per_step=work,
            predicted="", unread="",
        )  # fmt: skip

    def _make(self, kind: int, strategies: Sequence[BlockStrategy]) -> None:
        """Have strategies made, and all that leave the same axes unused."""
        unused = {self._unused(each) for each in strategies}
        self._made[kind] |= {each for each in self._all[kind] if self._unused(each) in unused}


def _wanted(
    found: Sequence[BlockCandidates], stand_ins: Mapping[int, Sequence[Candidate]], choices: Sequence[int]
) -> dict[int, list[BlockStrategy]]:
    """The strategies of kinds of blocks whose stand-ins are in a plan."""
    wanted: dict[int, list[BlockStrategy]] = {}
    for each, choice in zip(found, choices, strict=True):
        number = choice - len(each.candidates)
        if number >= 0:
            wanted.setdefault(each.kind, []).append(stand_ins[each.kind][number].strategy)
    return wanted


def _splits_more(strategy: BlockStrategy, other: BlockStrategy, axes: frozenset[int]) -> bool:
    """Whether a strategy splits what another one splits, and something along each of the axes."""
    pairs = enumerate(zip(strategy.factors, other.factors, strict=True))
    return all(own is not None if axis in axes else own == others for axis, (own, others) in pairs)


def _micro_batch_bytes(candidate: Candidate) -> float:
    """What a candidate writes and reads but for what is done once a step."""
    return candidate.work.memory_bytes - candidate.per_step.memory_bytes


def _without(sharding: ArraySharding, axes: frozenset[int]) -> ArraySharding:
    """A sharding without some mesh axes."""
    dims = (tuple(axis for axis in own if axis.index not in axes) for own in sharding.dims)
    return ArraySharding(sharding.mesh, tuple(dims))
