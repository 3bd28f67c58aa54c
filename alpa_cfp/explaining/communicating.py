"""What candidates communicate, and along which mesh axes.

Takes candidates of one block; gives the `Communication` of each. Of a candidate whose program was made, the program
says which devices come together; of the others how many there are does, and the candidate that keeps its state as it is
used. Invariant: counts and bytes are those of the program, or of the candidate's `Work` where there is none.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from alpa_cfp.candidates import Candidate
from alpa_cfp.explaining.account import Communication, Role
from alpa_cfp.strategies import Kept
from alpa_on_jax.xla_extension import mlir
from alpa_on_jax.xla_extension.partition import Collective, PartitionedProgram
from alpa_on_jax.xla_extension.sharding import Axis, LogicalMesh

# Along these, devices have the same part of a weight, and share it where state is shared.
_SHARING: frozenset[Role | None] = frozenset({"samples", None})
_SHARED_BY = frozenset({"reduce-scatter", "all-gather"})


@dataclass(frozen=True)
class Communications:
    """What the candidates of a block communicate.

    Attributes:
        mesh: The logical mesh.
        candidates: The candidates.
        roles: For each what each mesh axis splits.
        made: For each whether its program was made.
    """

    mesh: LogicalMesh
    candidates: Sequence[Candidate]
    roles: Sequence[tuple[Role | None, ...]]
    made: Sequence[bool]

    def all(self) -> list[tuple[Communication, ...]]:
        """For each candidate its communication, equal collectives together."""
        found: list[tuple[Communication, ...]] = []
        # The candidate that keeps its state as it is used comes before those that share it.
        base: list[tuple[Collective, tuple[int, ...]]] = []
        for candidate, roles, made in zip(self.candidates, self.roles, self.made, strict=True):
            as_used = candidate.strategy.kept is Kept.AS_USED
            program = candidate.module.partitioned if made or as_used else None
            if program is None:
                each = [(one, self._derived(one, roles, base)) for one in candidate.work.collectives]
            else:
                each = self._read(program)
            if as_used:
                base = each
            found.append(_together(each))
        return found

    def _read(self, program: PartitionedProgram) -> list[tuple[Collective, tuple[int, ...]]]:
        """The collectives of a program with their axes; its text is read only where sizes leave it open."""
        axes = [self._by_size(each) for each in program.collectives]
        if None not in axes:
            return [(each, known or ()) for each, known in zip(program.collectives, axes, strict=True)]
        names = {f"stablehlo.{each.kind.replace('-', '_')}" for each in program.collectives}
        with mlir.context():
            parsed = mlir.parse(program.bytecode)
            block = mlir.entry_block(mlir.main_function(parsed))
            groups = [mlir.replica_groups(op) for op in mlir.block_operations(block) if op.name in names]
        axes_of = {_sets(self.mesh.groups(axes)): _indices(axes) for axes in _combinations(self.mesh)}
        read = (() if each is None else axes_of.get(_sets(each), ()) for each in groups)
        return list(zip(program.collectives, read, strict=True))

    def _by_size(self, collective: Collective) -> tuple[int, ...] | None:
        """The only axes that have so many devices; None where several have."""
        if collective.kind == "collective-permute":
            return _indices(self.mesh.axes) if len(self.mesh.axes) == 1 else ()
        found = [axes for axes in _combinations(self.mesh) if _size(axes) == collective.group_size]
        return None if len(found) > 1 else _indices(found[0]) if found else ()

    def _derived(
        self,
        collective: Collective,
        roles: tuple[Role | None, ...],
        base: Sequence[tuple[Collective, tuple[int, ...]]],
    ) -> tuple[int, ...]:
        """The axes of a collective of a candidate without a program."""
        known = self._by_size(collective)
        if known is not None:
            return known
        sharing = [axis for axis in self.mesh.axes if roles[axis.index] in _SHARING]
        if collective.kind in _SHARED_BY and _size(sharing) == collective.group_size:
            return _indices(sharing)
        alike = [
            each for each in base if (each[0].kind, each[0].group_size) == (collective.kind, collective.group_size)
        ]
        same = {axes for each, axes in alike if each == collective} or {axes for _, axes in alike}
        return same.pop() if len(same) == 1 else ()


def _together(collectives: Sequence[tuple[Collective, tuple[int, ...]]]) -> tuple[Communication, ...]:
    found: dict[tuple[str, tuple[int, ...], int], Communication] = {}
    for each, axes in collectives:
        key = each.kind, axes, each.size_bytes
        before = found.get(key, Communication(each.kind, axes, int(each.size_bytes), 0))
        found[key] = replace(before, count=before.count + 1)
    return tuple(found.values())


def _combinations(mesh: LogicalMesh) -> list[tuple[Axis, ...]]:
    counts = range(1, len(mesh.axes) + 1)
    return [axes for count in counts for axes in itertools.combinations(mesh.axes, count)]


def _size(axes: Sequence[Axis]) -> int:
    return math.prod(axis.size for axis in axes)


def _indices(axes: Sequence[Axis]) -> tuple[int, ...]:
    return tuple(axis.index for axis in axes)


def _sets(groups: Sequence[Sequence[int]]) -> frozenset[frozenset[int]]:
    return frozenset(map(frozenset, groups))
