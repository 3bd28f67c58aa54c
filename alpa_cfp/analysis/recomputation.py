"""What a training step may compute again in its backward pass instead of keeping it: its units.

Takes `Blocks`; gives `Unit`s. The forward pass is cut between segments, where the fewest bytes are alive; what lies
between two cuts is a unit: a layer. If a program repeats little, it is cut between blocks, wherever a cut is narrower
than those beside it. The last unit is left out: its backward pass comes next, so nothing of it would be freed in
between. A unit that is computed again needs what enters it, and waits for a gradient, as under `jax.checkpoint`.

A `Repeat` says what of a unit is computed again: all of it, or all but its products ("dots saveable" in JAX), and what
stays. Invariants: units have no op in common; a repeat computes the same values, and no random op of its own, nothing
with side effects and no `shard_map` is in it; what it waits for does not depend on what it computes; equal programs
have equal units.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from alpa_cfp.analysis.backward import backward_start
from alpa_cfp.analysis.blocks import Blocks
from alpa_cfp.analysis.contractions import find_contractions
from alpa_cfp.analysis.graph import BARRIER, ISLAND, MARK, WHILE, Graph, itemsize
from alpa_cfp.analysis.segments import find_segments
from alpa_cfp.analysis.structure import find_structure
from alpa_cfp.spmd.ir.op_kinds import CONTRACTIONS

# Ops that are not computed twice: another call draws other numbers, acts again, or is written for each device.
_ONCE = frozenset(
    {"stablehlo.rng", "stablehlo.custom_call", "stablehlo.infeed", "stablehlo.outfeed", "stablehlo.send"}
    | {"stablehlo.recv", ISLAND}
)
# Programs of fewer segments are cut between blocks.
_LEAST_UNITS = 3


@dataclass(frozen=True, slots=True)
class Repeat:
    """The part of a unit that is computed again.

    Attributes:
        ops: Its ops, in program order.
        inputs: The values that it is computed from, constants left out.
        gradient: The value that it waits for.
        first_user: The first op that needs both `gradient` and the unit: the repeat stands before it.
        moved: Ops behind `first_user` in the new program that were before it: they need what is computed again.
        freed_bytes: The bytes that are no longer kept for the backward pass, over all devices.
        flops: The operations of its products.
        written_bytes: The bytes of its results.
    """

    ops: tuple[int, ...]
    inputs: tuple[int, ...]
    gradient: int
    first_user: int
    moved: tuple[int, ...]
    freed_bytes: int
    flops: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of the forward pass.

    Attributes:
        index: Its number among the units of the program.
        blocks: The blocks whose forward contractions are in it.
        whole: All of it again.
        without_products: All of it but its products.
    """

    index: int
    blocks: tuple[int, ...]
    whole: Repeat
    without_products: Repeat | None

    def repeat(self, *, keeps_products: bool) -> Repeat | None:
        """What is computed again; None if that would free nothing."""
        return self.without_products if keeps_products else self.whole


def find_units(blocks: Blocks) -> tuple[Unit, ...]:
    """Returns the units of a program of which computing them again frees memory; none without a backward pass."""
    search = _Search(blocks)
    if search.turn == len(blocks.graph.ops):
        return ()
    cuts = search.cuts_between([segment.blocks for segment in find_segments(blocks).segments])
    if len(cuts) < _LEAST_UNITS:
        cuts = search.narrow_cuts()
    units = (search.unit(index, part) for index, part in enumerate(_parts(cuts)))
    return tuple(unit for unit in units if unit is not None)


def _parts(cuts: Sequence[int]) -> list[range]:
    """The parts of the forward pass before the last cut."""
    return [range(start, stop) for start, stop in zip((0, *cuts), cuts, strict=False)]


class _Search:
    def __init__(self, blocks: Blocks) -> None:
        self.blocks, self.graph = blocks, blocks.graph
        self.turn = backward_start(blocks)
        # For each block the forward contractions of it that are in the forward pass.
        self.entries = [
            [entry.op for entry in block.entries if entry.role == "forward" and entry.op < self.turn]
            for block in blocks.blocks
        ]
        gradients = (e.op for block in blocks.blocks for e in block.entries if e.role == "gradient")
        self.after_gradients = _with_descendants(self.graph, gradients)

    @cached_property
    def flops_of(self) -> dict[int, int]:
        """The operations of each product."""
        found = find_contractions(self.graph, find_structure(self.graph))
        return {each.op: 2 * each.volume for each in found if self.graph.ops[each.op].name in CONTRACTIONS}

    @cached_property
    def widths(self) -> list[int]:
        """For each position in the forward pass the bytes that are made before it and used behind it, there."""
        grows = [0] * (self.turn + 1)
        for value in self.graph.values:
            if value.op is None or value.op >= self.turn or self.graph.constant_derived[value.op]:
                continue
            last = max((user for user in value.users if user < self.turn), default=value.op)
            grows[value.op + 1] += self.size(value.id)
            grows[last + 1] -= self.size(value.id)
        widths, alive = [], 0
        for change in grows:
            alive += change
            widths.append(alive)
        return widths

    def size(self, value: int) -> int:
        """The bytes of a value."""
        return math.prod(self.graph.shape(value)) * itemsize(self.graph.values[value].dtype)

    def cuts_between(self, parts: Sequence[Sequence[int]]) -> list[int]:
        """The narrowest position between each two parts (sets of blocks) whose contractions do not overlap."""
        found = sorted(sorted(op for block in part for op in self.entries[block]) for part in parts)
        entries = [each for each in found if each]
        cuts, last = list[int](), -1
        for before, after in pairwise(entries):
            last = max(last, before[-1])
            if last < after[0]:
                cuts.append(min(range(last + 1, after[0] + 1), key=lambda at: (self.widths[at], at)))
        return cuts

    def narrow_cuts(self) -> list[int]:
        """The cuts between blocks that are no wider than those beside them."""
        cuts = self.cuts_between([[block.index] for block in self.blocks.blocks])
        widths = [self.widths[cut] for cut in cuts]
        sides = zip(widths, [math.inf, *widths], [*widths[1:], math.inf], strict=False)
        return [cut for cut, (own, *beside) in zip(cuts, sides, strict=True) if own <= min(beside)]

    def unit(self, index: int, part: range) -> Unit | None:
        whole = self.repeat(part, keeps_products=False)
        if whole is None:
            return None
        blocks = tuple(number for number, entries in enumerate(self.entries) if any(op in part for op in entries))
        return Unit(index, blocks, whole, self.repeat(part, keeps_products=True))

    def repeat(self, part: range, *, keeps_products: bool) -> Repeat | None:
        """What is computed again of a part of the forward pass; None if that frees nothing."""
        graph = self.graph
        again = self._cloned(part, keeps_products)
        made = {value for op in again for value in graph.ops[op].results}
        operands = dict.fromkeys(value for op in again for value in graph.ops[op].operands if value not in made)
        inputs = tuple(value for value in operands if not self._is_constant(value))
        found = self._place(made)
        if not again or not inputs or found is None:
            return None
        first_user, gradient, moved = found
        before = {value for value in self._made_in(part) if self._late_users(value)}
        after = {value for value in before if value not in made} | {v for v in inputs if self._is_saved_by_this(v)}
        freed_bytes = sum(map(self.size, before)) - sum(map(self.size, after))
        if freed_bytes <= 0:
            return None
        flops = sum(self.flops_of.get(op, 0) for op in again)
        return Repeat(
            tuple(again), inputs, gradient, first_user, moved, freed_bytes, flops, sum(map(self.size, made))
        )  # fmt: skip

    def _cloned(self, part: range, keeps_products: bool) -> list[int]:
        """The ops of a part that are computed again, in program order: from what is kept to what is needed."""
        needed = {value for value in self._made_in(part) if self._late_users(value)}
        found: list[int] = []
        for number in reversed(part):
            op = self.graph.ops[number]
            if needed.isdisjoint(op.results) or self.graph.constant_derived[number]:
                continue
            if not self._is_kept(number, keeps_products):
                found.append(number)
                needed.update(op.operands)
        return found[::-1]

    def _is_kept(self, number: int, keeps_products: bool) -> bool:
        op = self.graph.ops[number]
        is_mark = op.name == BARRIER and op.attributes == MARK
        return op.name in _ONCE or is_mark or (keeps_products and (number in self.flops_of or op.name == WHILE))

    def _place(self, made: Collection[int]) -> tuple[int, int, tuple[int, ...]] | None:
        """(the first op that needs a gradient and the repeat, that gradient, the ops before it that need the repeat).

        None if no gradient meets the repeat.
        """
        from_unit, moved = set(made), list[int]()
        for op in self.graph.ops[self.turn :]:
            if from_unit.isdisjoint(op.operands):
                continue
            if self.after_gradients[op.index]:
                # The first gradients of a program are computed from values that none of them led to.
                others = [v for v in op.operands if v not in from_unit and self.graph.values[v].op is not None]
                gradient = max(others, key=lambda value: (self._is_gradient(value), value), default=None)
                return None if gradient is None else (op.index, gradient, tuple(moved))
            moved.append(op.index)
            from_unit.update(op.results)
        return None

    def _made_in(self, part: range) -> list[int]:
        ops = (self.graph.ops[op] for op in part if not self.graph.constant_derived[op])
        return [value for op in ops for value in op.results]

    def _late_users(self, value: int) -> list[int]:
        return [user for user in self.graph.values[value].users if user >= self.turn]

    def _is_gradient(self, value: int) -> bool:
        op = self.graph.values[value].op
        return op is not None and self.after_gradients[op]

    def _is_constant(self, value: int) -> bool:
        op = self.graph.values[value].op
        return op is not None and self.graph.constant_derived[op]

    def _is_saved_by_this(self, value: int) -> bool:
        """Whether a value is kept for a repeat only: the backward pass does not need it, and it is no parameter."""
        return self.graph.values[value].op is not None and not self._late_users(value)


def _with_descendants(graph: Graph, ops: Iterable[int]) -> list[bool]:
    """For each op whether it is one of `ops`, or is computed from one of them."""
    found = [False] * len(graph.ops)
    for op in ops:
        found[op] = True
    for op in graph.ops:
        producers = (graph.values[operand].op for operand in op.operands)
        found[op.index] = found[op.index] or any(each is not None and found[each] for each in producers)
    return found
