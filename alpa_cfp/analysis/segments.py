"""Segments: the runs of blocks that a model repeats (CFP, section 3).

Takes `Blocks`; gives `Segments`: the sequence of blocks divided into runs, and the runs that are equal programs. Two
segments are of one *kind* if their ops, attributes, rules, types and inner edges are equal, op for op. Names,
positions, barriers and the sources of outer values do not count (an extracted subprogram has no barriers, and those of
a pipeline's marks may be in any order), nor does where a slice begins or on which side padding is: each step of an
unrolled recurrence takes its own part of the inputs, and costs what the others do. Invariants: every block is in
exactly one segment, in order; the number of kinds of a model of equal layers does not depend on the number of layers.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from alpa_cfp.analysis.blocks import Blocks
from alpa_cfp.analysis.collection import without_collection
from alpa_cfp.analysis.graph import BARRIER, Graph
from alpa_cfp.analysis.ordering import Order

# Of a slice and of padding, where the part is; how large it is, is in the types.
_PLACES = {
    "stablehlo.slice": re.compile(r"(start|limit)_indices=array<i64[^>]*>"),
    "stablehlo.pad": re.compile(r"edge_padding_(low|high)=array<i64[^>]*>"),
}


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of blocks.

    Attributes:
        index: Its number.
        blocks: The indices of its blocks.
        kind: The index of the first segment that is an equal program.
        ops: Its ops, in the order of `ordering`; those of segments of one kind correspond, except barriers.
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
        """The index of the first segment of each kind."""
        return tuple(segment.index for segment in self.segments if segment.kind == segment.index)


@without_collection
def find_segments(blocks: Blocks, digests: Sequence[bytes] | None = None) -> Segments:
    """Divides the blocks of a program into segments.

    Args:
        blocks: The blocks.
        digests: The digest of each block (`digests_of`), if they are known.
    """
    fingerprints, order = _Fingerprints(blocks.graph, with_places=False), Order(blocks.graph)
    ops_of_block = [order.of((*block.members, *block.glue)) for block in blocks.blocks]
    numbers: dict[bytes, int] = {}
    digests = digests or [fingerprints.of(_without_barriers(blocks.graph, ops)) for ops in ops_of_block]
    runs = repeated_runs([numbers.setdefault(digest, len(numbers)) for digest in digests])
    segments: list[Segment] = []
    first_of: dict[bytes, int] = {}
    for start, stop in runs:
        ops = tuple(order.of(op for block in range(start, stop) for op in ops_of_block[block]))
        kind = first_of.setdefault(fingerprints.of(_without_barriers(blocks.graph, ops)), len(segments))
        segments.append(Segment(len(segments), tuple(range(start, stop)), kind, ops))
    return Segments(blocks, tuple(segments))


def digest_of(graph: Graph) -> str:
    """Returns 64 hexadecimal digits that are equal for equal programs; barriers do not count.

    Neither does the order in which weights are updated: it differs between a stage of a pipeline and its candidate.
    """
    ops = Order(graph).of(op.index for op in graph.ops if not graph.constant_derived[op.index])
    return _Fingerprints(graph, through_barriers=True).of(_without_barriers(graph, ops)).hex()


def digests_of(graph: Graph, parts: Sequence[Sequence[int]]) -> list[bytes]:
    """Returns a digest for each part (a set of ops) without its barriers, comparable between graphs.

    Where its slices begin does not count, nor on which side its padding is.
    """
    fingerprints, order = _Fingerprints(graph, with_places=False), Order(graph)
    return [fingerprints.of(_without_barriers(graph, order.of(ops))) for ops in parts]


def _without_barriers(graph: Graph, ops: Sequence[int]) -> list[int]:
    return [op for op in ops if graph.ops[op].name != BARRIER]


def repeated_runs(sequence: Sequence[int]) -> list[tuple[int, int]]:
    """Divides a sequence into half-open runs: each repetition of the pattern that covers most, and each gap."""
    runs: list[tuple[int, int]] = []
    worklist = [(0, len(sequence))]
    while worklist:
        start, stop = worklist.pop()
        if start == stop:
            continue
        repeat = _best_repeat(sequence[start:stop])
        if repeat is None:
            runs.append((start, stop))
            continue
        first, period, count = repeat
        first += start
        runs += [(first + i * period, first + (i + 1) * period) for i in range(count)]
        worklist += [(start, first), (first + count * period, stop)]
    return sorted(runs)


def _best_repeat(sequence: Sequence[int]) -> tuple[int, int, int] | None:
    """(start, period, count) of the repetition that covers most of `sequence`, with ties broken by the shortest period
    and then the earliest start; None if nothing is repeated.

    The last repetition may be incomplete, since a model's end differs. It counts as covered if at least half of it is
    there, but not in `count`. So a model of two layers is divided like one of many.
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
    """Digests of sets of ops, equal for equal programs.

    Args:
        graph: The graph.
        through_barriers: Whether a value behind a barrier counts as the value before it, and not as an outer value.
            Parameters behind a pipeline's marks always count as themselves.
        with_places: Whether it counts where slices begin, and on which side padding is.
    """

    def __init__(self, graph: Graph, *, through_barriers: bool = False, with_places: bool = True):
        self._graph, self._through, self._places = graph, through_barriers, {} if with_places else _PLACES
        self._constants: dict[int, bytes] = {}
        self._returned = set(map(self._before_barriers, graph.results))

    def of(self, ops: Sequence[int]) -> bytes:
        """Returns the digest of the program that consists of `ops`, in a topological order."""
        graph, inside = self._graph, set(ops)
        local: dict[int, int] = {}
        digest = hashlib.sha256()
        for index in ops:
            op = graph.ops[index]
            place = self._places.get(op.name)
            parts: list[object] = [op.name, place.sub("", op.attributes) if place else op.attributes, op.rule]
            for value in map(self._before_barriers, op.operands):
                producer = graph.values[value].op
                if producer is not None and graph.constant_derived[producer] and producer not in inside:
                    parts.append(self._constant_digest(value))
                    continue
                is_known = value in local
                number = local.setdefault(value, len(local))
                parts.append(number if is_known else (number, *self._type(value), producer is None))
            for value in op.results:
                local.setdefault(value, len(local))
                is_result = value in self._returned or any(user not in inside for user in self._users(value))
                parts.append((*self._type(value), is_result))
            digest.update(repr(parts).encode())
        return digest.digest()

    def _before_barriers(self, value: int) -> int:
        return self._graph.origin(value) if self._through else self._graph.parameter_or(value)

    def _users(self, value: int) -> list[int]:
        """The ops that use a value.

        A barrier is one of them, as for the extractor: what goes into it leaves the part, whoever uses it behind it.
        If values are traced through barriers, the part is the whole program, and so no user is outside.
        """
        users = self._graph.values[value].users
        return [user for user in users if not self._through or self._graph.ops[user].name != BARRIER]

    def _type(self, value: int) -> tuple[tuple[int, ...], str]:
        return self._graph.values[value].shape, self._graph.values[value].dtype

    def _constant_digest(self, value: int) -> bytes:
        """The digest of a constant-derived value."""
        worklist = [value]
        while worklist:
            top = worklist[-1]
            op = self._graph.producer(top)
            assert op is not None
            missing = [operand for operand in op.operands if operand not in self._constants]
            if missing and top not in self._constants:
                worklist += missing
                continue
            worklist.pop()
            inputs = [self._constants[operand] for operand in op.operands]
            parts = (op.name, op.attributes, inputs, op.results.index(top), self._type(top))
            self._constants[top] = hashlib.sha256(repr(parts).encode()).digest()
        return self._constants[value]
