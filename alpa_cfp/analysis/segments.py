"""Segments: the runs of blocks that a model repeats (CFP, section 3).

Takes `Blocks`; gives `Segments`: the sequence of blocks cut into runs, and which runs are the same program. Two
segments are of one *kind* if their ops, attributes, rules, types and inner wiring are equal, op for op; names,
positions, barriers and where values from outside come from do not count (a part that is cut out has no barriers, and
those of a pipeline's marks stand in any order). Invariants: every block is in exactly one segment, in
order; the number of kinds of a model of equal layers does not depend on how many there are.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from alpa_cfp.analysis.blocks import Blocks
from alpa_cfp.analysis.collection import without_collection
from alpa_cfp.analysis.graph import BARRIER, Graph
from alpa_cfp.analysis.ordering import Order


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of blocks.

    Attributes:
        index: Its number.
        blocks: The indices of its blocks.
        kind: The index of the first segment that is the same program.
        ops: Its ops, in the order of `ordering`; but for barriers, those of segments of one kind correspond to each
            other.
    """

    index: int
    blocks: tuple[int, ...]
    kind: int
    ops: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Segments:
    """The segments of a program.

    Attributes:
        blocks: Its blocks.
        segments: Its segments.
    """

    blocks: Blocks
    segments: tuple[Segment, ...]

    @property
    def kinds(self) -> tuple[int, ...]:
        """The indices of the segments that are the first of their kind."""
        return tuple(segment.index for segment in self.segments if segment.kind == segment.index)


@without_collection
def find_segments(blocks: Blocks) -> Segments:
    """Cut the blocks of a program into segments."""
    fingerprints, order = _Fingerprints(blocks.graph), Order(blocks.graph)
    ops_of_block = [order.of((*block.members, *block.glue)) for block in blocks.blocks]
    numbers: dict[bytes, int] = {}
    digests = [fingerprints.of(_without_barriers(blocks.graph, ops)) for ops in ops_of_block]
    runs = repeated_runs([numbers.setdefault(digest, len(numbers)) for digest in digests])
    segments: list[Segment] = []
    first_of: dict[bytes, int] = {}
    for start, stop in runs:
        ops = tuple(order.of(op for block in range(start, stop) for op in ops_of_block[block]))
        kind = first_of.setdefault(fingerprints.of(_without_barriers(blocks.graph, ops)), len(segments))
        segments.append(Segment(len(segments), tuple(range(start, stop)), kind, ops))
    return Segments(blocks, tuple(segments))


def digest_of(graph: Graph) -> str:
    """64 hexadecimal digits that are the same for equal programs, whatever goes through barriers in them.

    Nor does it matter in which order weights are updated: a stage of a pipeline has another than its candidate.
    """
    ops = Order(graph).of(op.index for op in graph.ops if not graph.constant_derived[op.index])
    return _Fingerprints(graph, through_barriers=True).of(_without_barriers(graph, ops)).hex()


def digests_of(graph: Graph, parts: Sequence[Sequence[int]]) -> list[bytes]:
    """For each part, which is some ops, what is the same for equal programs, of this graph or of another one.

    As it is cut out, without its barriers.
    """
    fingerprints, order = _Fingerprints(graph), Order(graph)
    return [fingerprints.of(_without_barriers(graph, order.of(ops))) for ops in parts]


def _without_barriers(graph: Graph, ops: Sequence[int]) -> list[int]:
    return [op for op in ops if graph.ops[op].name != BARRIER]


def repeated_runs(sequence: Sequence[int]) -> list[tuple[int, int]]:
    """Cut a sequence into half-open runs: each repetition of what repeats most is one, and so is what lies between."""
    runs: list[tuple[int, int]] = []
    waiting = [(0, len(sequence))]
    while waiting:
        start, stop = waiting.pop()
        if start == stop:
            continue
        repeat = _best_repeat(sequence[start:stop])
        if repeat is None:
            runs.append((start, stop))
            continue
        first, period, count = repeat
        first += start
        runs += [(first + i * period, first + (i + 1) * period) for i in range(count)]
        waiting += [(start, first), (first + count * period, stop)]
    return sorted(runs)


def _best_repeat(sequence: Sequence[int]) -> tuple[int, int, int] | None:
    """(start, period, count) of the repetition that covers most of `sequence`, among such the shortest period and the
    earliest start; None where nothing follows itself.

    The last repetition may be broken off, by what differs at a model's end: it counts as covered if at least half of it
    is there, and not in `count`. So a model of two layers is cut as one of many.
    """
    best, covered = None, 0
    for period in range(1, len(sequence)):
        run = 0
        for i in range(len(sequence) - period + 1):
            if i + period < len(sequence) and sequence[i] == sequence[i + period]:
                run += 1
                continue
            if 2 * run >= period and run + period > covered:
                best, covered = (i - run, period, run // period + 1), run + period
            run = 0
    return best


class _Fingerprints:
    """Digests of sets of ops that are equal for equal programs.

    Args:
        graph: The graph.
        through_barriers: Whether a value that comes through a barrier is the same as before it, and not from outside;
            a parameter is the same anyway.
    """

    def __init__(self, graph: Graph, *, through_barriers: bool = False):
        self._graph, self._through = graph, through_barriers
        self._free: dict[int, bytes] = {}
        self._returned = set(map(self._before_barriers, graph.results))

    def of(self, ops: Sequence[int]) -> bytes:
        """The digest of the program that consists of `ops`, each behind those that make its operands."""
        graph, inside = self._graph, set(ops)
        local: dict[int, int] = {}
        digest = hashlib.sha256()
        for index in ops:
            op = graph.ops[index]
            parts: list[object] = [op.name, op.attributes, op.rule]
            for value in map(self._before_barriers, op.operands):
                producer = graph.values[value].op
                if producer is not None and graph.constant_derived[producer] and producer not in inside:
                    parts.append(self._free_digest(value))
                    continue
                known = value in local
                number = local.setdefault(value, len(local))
                parts.append(number if known else (number, *self._type(value), producer is None))
            for value in op.results:
                local.setdefault(value, len(local))
                leaves = value in self._returned or any(user not in inside for user in self._users(value))
                parts.append((*self._type(value), leaves))
            digest.update(repr(parts).encode())
        return digest.digest()

    def _before_barriers(self, value: int) -> int:
        return self._graph.origin(value) if self._through else self._graph.parameter_or(value)

    def _users(self, value: int) -> list[int]:
        """The ops that use a value; not the barriers that it goes through, where it is the same behind them."""
        users = self._graph.values[value].users
        return [user for user in users if not self._through or self._graph.ops[user].name != BARRIER]

    def _type(self, value: int) -> tuple[tuple[int, ...], str]:
        return self._graph.values[value].shape, self._graph.values[value].dtype

    def _free_digest(self, value: int) -> bytes:
        """The digest of a value that derives from constants alone."""
        waiting = [value]
        while waiting:
            top = waiting[-1]
            op = self._graph.producer(top)
            assert op is not None
            missing = [operand for operand in op.operands if operand not in self._free]
            if missing and top not in self._free:
                waiting += missing
                continue
            waiting.pop()
            inputs = [self._free[operand] for operand in op.operands]
            parts = (op.name, op.attributes, inputs, op.results.index(top), self._type(top))
            self._free[top] = hashlib.sha256(repr(parts).encode()).digest()
        return self._free[value]
