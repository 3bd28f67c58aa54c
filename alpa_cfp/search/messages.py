"""Messages between the variables of a problem, sent in sweeps over many variables at once.

Takes a `SearchProblem` and a price for each choice; gives a lower bound on the price of all plans, and plans that are
cheap by the bound's proof. Costs of a variable and its neighbours are shifted between them by messages, in sweeps over
the variables in both directions, so that as much as possible of each plan's cost is in sums of minima (sequential
tree-reweighted message passing: Kolmogorov, "Convergent tree-reweighted message passing for energy minimization"
(2006)). Invariant: a bound is never above the true minimum, but for rounding: it is a sum of minima of tables that add
up to those of the problem, whatever the messages are.

Variables are swept in levels, each of variables that no edge joins, whose messages are then one array operation for
each shape of table. A long chain is cut into pieces that are swept side by side; what a sweep carries to the end of a
piece is carried on by the next. Numbers of choices are rounded up, with choices that cost infinity, so that there are
few shapes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from alpa_cfp.search.limits import Deadline
from alpa_cfp.search.problem import Array, Index, SearchProblem

# Variables that follow each other in one sweep; so many pieces are swept side by side.
_PIECE = 32
# Entries of tables that are added up at once: they stay in the cache.
_AT_ONCE = 2**16


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """Links of one shape from variables of a level: `time_s` [link, own choice, other's choice].

    `source` is the variable's row in the level's step, `back` and `out` are the rows of the messages from and to the
    other variable, among those to variables of `own` and `other` choices.
    """

    time_s: Array
    other: int
    source: Index
    back: Index
    out: Index


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """The variables of a level with so many choices (rounded up), and their links to later and to earlier levels.

    `rows` are the variables' rows among all of that size, `incoming` the rows of the messages to them, by variable, and
    `first` where those of each variable begin. A link gets `share` of its variable's cost, if that is on its side.
    """

    own: int
    variables: Index
    rows: Index
    incoming: Index
    first: Index
    share: Array
    left: tuple[Array, Array]
    ahead: tuple[tuple[_Batch, ...], tuple[_Batch, ...]]


class Messages:
    """Messages between the variables of a problem; they are kept from sweep to sweep.

    Args:
        problem: The problem.
        deadline: After it a sweep ends early.
    """

    def __init__(self, problem: SearchProblem, deadline: Deadline) -> None:
        self._deadline = deadline
        self._choices = [v.choices for v in problem.variables]
        self._width = [_rounded(count) for count in self._choices]
        self._row: list[int] = []
        counts: dict[int, int] = {}
        for width in self._width:
            self._row.append(counts.get(width, 0))
            counts[width] = self._row[-1] + 1
        self._price = {width: np.full((count, width), np.inf) for width, count in counts.items()}
        links = _links(problem)
        self._alone = sorted(set(range(len(self._choices))) - {v for pair in links for v in pair})
        received: dict[int, int] = {}
        # The rows of the messages to the second and to the first end of each link.
        to: list[tuple[int, int]] = []
        for first, second in links:
            there, back = (received.setdefault(self._width[v], 0) for v in (second, first))
            if self._width[first] == self._width[second]:
                back += 1
            to.append((there, back))
            for v in (first, second):
                received[self._width[v]] += 1
        self._messages = {width: np.zeros((count, width)) for width, count in received.items()}
        self._steps = self._levels(links, to)
        self._buffer = np.zeros(max((b.time_s.size for s in self._steps for side in s.ahead for b in side), default=0))

    def reprice(self, prices: Sequence[Array]) -> None:
        """Gives each variable's choices a price (inf excludes one, but not all); messages stay as they are."""
        for width, row, own in zip(self._width, self._row, prices, strict=True):
            self._price[width][row, : len(own)] = own

    def sweep(self, *, upward: bool) -> float:
        """Sends all messages one way and gives the bound that they prove; -inf if the deadline ends it early.

        A variable hands each neighbour ahead an equal part of its own cost; the rest is bounded by its minimum. Without
        a neighbour ahead that is all of the cost.
        """
        bound = sum(float(self._price[self._width[v]][self._row[v]].min()) for v in self._alone)
        for step in self._steps if upward else reversed(self._steps):
            if self._deadline.is_over:
                return -np.inf
            total, messages = self._total(step, self._messages), self._messages[step.own]
            bound += float(step.left[upward] @ total.min(axis=1))
            part = total * step.share[:, None]
            for batch in step.ahead[upward]:
                given = part[batch.source] - messages[batch.back]
                joint = self._buffer[: batch.time_s.size].reshape(batch.time_s.shape)
                np.add(batch.time_s, given[:, :, None], out=joint)
                self._messages[batch.other][batch.out] = joint.min(axis=1)
        return bound

    def decoded(self, *, upward: bool) -> tuple[int, ...]:
        """A plan chosen variable by variable: earlier neighbours count as chosen, later ones by their messages."""
        plan = np.zeros(len(self._choices), np.int64)
        for v in self._alone:
            plan[v] = self._price[self._width[v]][self._row[v]].argmin()
        messages = {width: kept.copy() for width, kept in self._messages.items()}
        for step in self._steps if upward else reversed(self._steps):
            chosen = self._total(step, messages).argmin(axis=1)
            plan[step.variables] = chosen
            for batch in step.ahead[upward]:
                picked = batch.time_s[np.arange(len(batch.source)), chosen[batch.source]]
                messages[batch.other][batch.out] = picked
        return tuple(plan.tolist())

    def _total(self, step: _Step, messages: dict[int, Array]) -> Array:
        """The variables' own prices and all messages to them."""
        return self._price[step.own][step.rows] + np.add.reduceat(messages[step.own][step.incoming], step.first)

    def _levels(self, links: dict[tuple[int, int], Array], to: Sequence[tuple[int, int]]) -> list[_Step]:
        """The steps of a sweep upward, in order."""
        rank = _ranks(len(self._choices))
        # For each variable: (other end, rows of the messages from and to it, table [own choice, other's]).
        ends: list[list[tuple[int, int, int, Array]]] = [[] for _ in self._choices]
        for ((first, second), time), (there, back) in zip(links.items(), to, strict=True):
            ends[first].append((second, back, there, time))
            ends[second].append((first, there, back, time.T))
        level: dict[int, int] = {}
        members: dict[tuple[int, int], list[int]] = {}
        for v in sorted((v for v in range(len(ends)) if ends[v]), key=rank.__getitem__):
            level[v] = 1 + max((level[u] for u, *_ in ends[v] if u in level), default=-1)
            members.setdefault((level[v], self._width[v]), []).append(v)
        return [self._step(width, members[at, width], ends, rank) for at, width in sorted(members)]

    def _step(
        self, width: int, variables: list[int], ends: list[list[tuple[int, int, int, Array]]], rank: Sequence[int]
    ) -> _Step:
        sides: tuple[dict[int, list[tuple[int, int, int, Array]]], ...] = ({}, {})
        ahead = np.zeros((2, len(variables)))
        incoming: list[int] = []
        first: list[int] = []
        for row, v in enumerate(variables):
            first.append(len(incoming))
            for other, back, out, time in ends[v]:
                incoming.append(back)
                upward = int(rank[other] > rank[v])
                ahead[upward, row] += 1
                sides[upward].setdefault(self._width[other], []).append((row, back, out, time))
        most = ahead.max(axis=0)
        return _Step(
            width,
            np.array(variables),
            np.array([self._row[v] for v in variables]),
            np.array(incoming),
            np.array(first),
            1 / most,
            (1 - ahead[0] / most, 1 - ahead[1] / most),
            (_batches(width, sides[0]), _batches(width, sides[1])),
        )


def _batches(own: int, side: dict[int, list[tuple[int, int, int, Array]]]) -> tuple[_Batch, ...]:
    """Links by the size of their other variable, so many at once as is good."""
    found: list[_Batch] = []
    for other, links in side.items():
        size = max(1, _AT_ONCE // (own * other))
        for begin in range(0, len(links), size):
            rows, back, out, times = zip(*links[begin : begin + size], strict=True)
            table = np.zeros((len(times), own, other))
            for padded, time in zip(table, times, strict=True):
                padded[: time.shape[0], : time.shape[1]] = time
            found.append(_Batch(table, other, np.array(rows), np.array(back), np.array(out)))
    return tuple(found)


def _links(problem: SearchProblem) -> dict[tuple[int, int], Array]:
    """All edges between two variables, added up: [first's choice, second's], the first variable being the earlier."""
    links: dict[tuple[int, int], Array] = {}
    for edge, (i, j) in zip(problem.edges, problem.ends, strict=True):
        pair, time = ((i, j), edge.time_s) if i < j else ((j, i), edge.time_s.T)
        links[pair] = time + links[pair] if pair in links else time
    return links


def _ranks(count: int) -> list[int]:
    """Each variable's place in a sweep: those that are `_PIECE` apart follow each other."""
    order = sorted(range(count), key=lambda v: (v % _PIECE, v)) if count >= 2 * _PIECE else list(range(count))
    rank = [0] * count
    for place, v in enumerate(order):
        rank[v] = place
    return rank


def _rounded(count: int) -> int:
    """The least of 1, 2, 3, 4, 6, 8, 12, 16, ... that is not smaller."""
    power = 1 << max(0, (count - 1).bit_length() - 1)
    return next(size for size in (power, power * 3 // 2, 2 * power) if size >= count)
