"""Finds the collectives of candidates, with their mesh axes and purposes.

Takes the candidates of one block; gives the `Communication` of each. If the program of a candidate was made, axes and
purposes are read in it. Otherwise they are derived: axes from the number of devices in a group, purposes from the
collectives of the candidate with the same factors and replicated state. If XLA partitions the program, its collectives
are those of the compiled program, and axes and purposes are those of equal collectives in the prediction.
Invariant: counts and bytes are those of the compiled program if they were read from it, else of the partitioned
program, or of the candidate's `Work` if there is none.
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from alpa_cfp.candidates.candidate import Candidate
from alpa_cfp.evidence.purposes import Share, share_of
from alpa_cfp.plan.plan_report import Communication, CommunicationSource, Purpose, Role
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.partitioned import collective_ops
from alpa_cfp.spmd.partition import Collective, PartitionedProgram
from alpa_cfp.spmd.shardings.sharding import Axis, LogicalMesh
from alpa_cfp.strategies.block_strategy import StateSharding

# Along axes with these roles, devices have the same part of a weight, and ZeRO splits it between them.
_SHARING: frozenset[Role | None] = frozenset({"samples", None})
_SHARED_BY = frozenset({"reduce-scatter", "all-gather"})


@dataclass(frozen=True, slots=True)
class _Known:
    """A collective, its mesh axes, and its share of weights and gradients."""

    collective: Collective
    axes: tuple[int, ...]
    share: Share


@dataclass(frozen=True)
class Communications:
    """The communication of the candidates of a block.

    Attributes:
        mesh: The logical mesh.
        candidates: The candidates.
        roles: For each candidate the role of each mesh axis.
        made: For each candidate whether its program was made.
        compiled: For each candidate the collectives of the compiled program; None if they were not read.
        weights: Numbers of the programs' parameters that are weights.
        results: For each result of the programs whether it has the shape of a weight.
    """

    mesh: LogicalMesh
    candidates: Sequence[Candidate]
    roles: Sequence[tuple[Role | None, ...]]
    made: Sequence[bool]
    compiled: Sequence[tuple[Collective, ...] | None]
    weights: Set[int]
    results: Sequence[bool]

    def all(self) -> list[tuple[Communication, ...]]:
        """For each candidate its communication, with equal collectives counted together."""
        found: list[tuple[Communication, ...]] = []
        # The candidate with replicated state comes before those with the same factors and sharded state.
        base: list[_Known] = []
        known = zip(self.candidates, self.roles, self.made, self.compiled, strict=True)
        for candidate, roles, made, compiled in known:
            is_replicated = candidate.strategy.state_sharding is StateSharding.REPLICATED
            program = candidate.module.partitioned if made or is_replicated else None
            each = (
                self._derived(candidate.work.collectives, roles, base)
                if program is None
                else self._read(program.counted)
            )
            if is_replicated:
                base = each
            if compiled is not None:
                each = self._compiled(compiled, roles, each)
            found.append(_counted(each))
        return found

    def _read(self, program: PartitionedProgram) -> list[_Known]:
        """The collectives of a program, which is parsed only if their sizes do not decide everything."""
        axes = [self._by_size(each) for each in program.collectives]
        if None not in axes and not any(self.results):
            return [_Known(each, known or (), Share()) for each, known in zip(program.collectives, axes, strict=True)]
        with mlir.context():
            parsed = mlir.parse(program.bytecode)
            block = mlir.entry_block(mlir.main_function(parsed))
            arguments = list(block.arguments)
            weights = {arguments[number] for number in self.weights}
            ops = collective_ops(block)
            groups = [mlir.replica_groups(op) for op in ops]
            shares = [share_of(op, weights, self.results) for op in ops]
        axes_of = {_sets(self.mesh.groups(axes)): _indices(axes) for axes in _combinations(self.mesh)}
        read = (() if each is None else axes_of.get(_sets(each), ()) for each in groups)
        # Sizes also decide the axes of collectives that have no groups.
        return [
            _Known(each, known if known is not None else own, share)
            for each, known, own, share in zip(program.collectives, axes, read, shares, strict=True)
        ]

    def _compiled(
        self, collectives: Sequence[Collective], roles: tuple[Role | None, ...], predicted: Sequence[_Known]
    ) -> list[_Known]:
        """The collectives of a compiled program; those that were predicted, too, have a purpose."""
        found, left = list[_Known](), list(predicted)
        for each in collectives:
            same = next((known for known in left if known.collective == each), None)
            if same is not None:
                left.remove(same)
            found.append(same or _Known(each, self._derived_axes(each, roles, predicted), Share()))
        return found

    def _by_size(self, collective: Collective) -> tuple[int, ...] | None:
        """The only axes whose number of devices is the group size; None if there are several."""
        if collective.kind == "collective-permute":
            return _indices(self.mesh.axes) if len(self.mesh.axes) == 1 else ()
        found = [axes for axes in _combinations(self.mesh) if _size(axes) == collective.group_size]
        return None if len(found) > 1 else _indices(found[0]) if found else ()

    def _derived(
        self, collectives: Sequence[Collective], roles: tuple[Role | None, ...], base: Sequence[_Known]
    ) -> list[_Known]:
        """The collectives of a candidate without a program, derived from those with replicated state (`base`)."""
        scattered = sum(each.size_bytes for each in collectives if each.kind == "reduce-scatter")
        scattered -= sum(each.collective.size_bytes for each in base if each.collective.kind == "reduce-scatter")
        # An estimated reduce-scatter need not be of gradients: it is taken for one if it is no larger than one.
        most = max((each.share.gradient * each.collective.size_bytes for each in base), default=0.0)
        found: list[_Known] = []
        unchanged = list(base)
        for each in collectives:
            same = next((known for known in unchanged if known.collective == each), None)
            if same is not None:
                unchanged.remove(same)
                found.append(same)
                continue
            is_gradient = each.kind == "reduce-scatter" and each.size_bytes <= most
            share = Share(1.0 if is_gradient else 0.0, each.kind == "all-gather")
            whole = next((known for known in unchanged if _is_rest(each, known.collective, scattered)), None)
            if whole is not None:
                size = whole.collective.size_bytes
                share = Share(max(0.0, whole.share.gradient * size - scattered) / each.size_bytes)
            found.append(_Known(each, self._derived_axes(each, roles, base), share))
        return found

    def _derived_axes(
        self, collective: Collective, roles: tuple[Role | None, ...], base: Sequence[_Known]
    ) -> tuple[int, ...]:
        """The axes of a collective that `base` does not have."""
        known = self._by_size(collective)
        if known is not None:
            return known
        sharing = [axis for axis in self.mesh.axes if roles[axis.index] in _SHARING]
        if collective.kind in _SHARED_BY and _size(sharing) == collective.group_size:
            return _indices(sharing)
        kind = collective.kind, collective.group_size
        axes = {each.axes for each in base if (each.collective.kind, each.collective.group_size) == kind}
        return axes.pop() if len(axes) == 1 else ()


def source_of(candidate: Candidate, compiled: tuple[Collective, ...] | None) -> CommunicationSource:
    """The source of a candidate's communication.

    Args:
        candidate: The candidate.
        compiled: The collectives of the compiled program; None if they were not read.
    """
    if compiled is not None:
        return "compiled"
    return "predicted" if candidate.predicted else "unknown" if candidate.unread else "program"


def _is_rest(collective: Collective, whole: Collective, scattered: float) -> bool:
    """Whether a sum is the rest of `whole` after `scattered` bytes of that became a reduce-scatter."""
    return replace(collective, size_bytes=collective.size_bytes + scattered) == whole


def _counted(collectives: Sequence[_Known]) -> tuple[Communication, ...]:
    counts: Counter[tuple[str, tuple[int, ...], int, Purpose | None]] = Counter(
        (each.collective.kind, each.axes, int(each.collective.size_bytes), each.share.purpose) for each in collectives
    )
    return tuple(
        Communication(kind, axes, size, count, purpose) for (kind, axes, size, purpose), count in counts.items()
    )


def _combinations(mesh: LogicalMesh) -> list[tuple[Axis, ...]]:
    counts = range(1, len(mesh.axes) + 1)
    return [axes for count in counts for axes in itertools.combinations(mesh.axes, count)]


def _size(axes: Sequence[Axis]) -> int:
    return math.prod(axis.size for axis in axes)


def _indices(axes: Sequence[Axis]) -> tuple[int, ...]:
    return tuple(axis.index for axis in axes)


def _sets(groups: Sequence[Sequence[int]]) -> frozenset[frozenset[int]]:
    return frozenset(map(frozenset, groups))
