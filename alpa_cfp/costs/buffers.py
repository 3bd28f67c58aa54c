"""Which values of a program have a buffer of their own, and how long each is needed: XLA's fusion, approximated.

Takes ops in their order; gives for each value the buffers that it is read from, and for each buffer its last use. An op
that computes or moves elements is part of the ops that use its result, which then read what it reads. Its result has a
buffer only if an op that is no part of others needs it in memory (a product, a collective), or if several ops use it
and what it is read from is larger: otherwise a sum over all layers would be read from all of them. Invariant: a value
that is read from other buffers keeps these until its own last use.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from alpa_cfp.spmd.ir.op_kinds import ELEMENTWISE, RULELESS_ELEMENTWISE

# Ops whose result is the operand of the same number, in the same buffer.
_VIEWS = frozenset({"stablehlo.reshape", "stablehlo.optimization_barrier", "alpa.step"})
_MOVES = ("broadcast_in_dim", "concatenate", "dynamic_slice", "pad", "reverse", "slice", "transpose")
_CONSTANTS = frozenset({"stablehlo.constant", "stablehlo.iota"})
# Ops that compute inside the ops that use their results.
FUSED = ELEMENTWISE | RULELESS_ELEMENTWISE | {f"stablehlo.{name}" for name in _MOVES} | _CONSTANTS
# Ops that read what they reduce or look up as it is computed, but write their result.
_READS_FUSED = frozenset(f"stablehlo.{name}" for name in ("reduce", "gather", "reduce_window"))

# A value that several ops use has a buffer if what it is read from is larger by this factor.
_LARGER = 1.5


class BufferOp(Protocol):
    """An op, with the numbers of the values that it takes and makes."""

    @property
    def name(self) -> str: ...
    @property
    def operands(self) -> tuple[int, ...]: ...
    @property
    def results(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class Buffers:
    """The buffers of a program; a buffer has the number of the value that is written to it.

    Attributes:
        sources: For each value the buffers that it is read from; itself if it has one.
        last_use: For each buffer the last op that reads it; -1 if none does.
        sizes: The bytes of each buffer. It has a value as it was before it was converted to a wider type.
    """

    sources: tuple[frozenset[int], ...]
    last_use: tuple[int, ...]
    sizes: tuple[int, ...]


def find_buffers(
    ops: Sequence[BufferOp],
    sizes: Sequence[int],
    given: Collection[int],
    returned: Collection[int],
    must_stay: Callable[[int, frozenset[int]], bool] = lambda value, sources: False,
) -> Buffers:
    """The buffers of a program.

    Args:
        ops: Its ops, in order.
        sizes: The bytes of each value.
        given: Values that are in memory in any case, such as arguments.
        returned: Values that the program hands on; they have buffers.
        must_stay: Whether a value that could be read from some buffers has one of its own, nevertheless.
    """
    users = _users(ops, len(sizes))
    needed = _needed_in_memory(ops, users)
    sources: list[frozenset[int]] = [frozenset({value}) for value in range(len(sizes))]
    last_use, kept = [-1] * len(sizes), {*given, *returned}
    # For each value the bytes of the smallest value that it is computed from alone, and of its buffer.
    narrowest, held = list(sizes), list(sizes)
    for number, op in enumerate(ops):
        if op.name in _VIEWS:
            for old, new in zip(op.operands, op.results, strict=False):
                if new not in kept or old in kept:
                    sources[new], narrowest[new] = sources[old], narrowest[old]
            if kept.isdisjoint(op.results):
                continue
        read = frozenset[int]().union(*(sources[value] for value in op.operands))
        if op.name in FUSED and kept.isdisjoint(op.results):
            (result,) = op.results
            same = (narrowest[value] for value in op.operands if sources[value] == read)
            narrowest[result] = min([sizes[result], *same]) if op.name in ELEMENTWISE else sizes[result]
            is_shared = len(users[result]) > 1 and sum(held[each] for each in read) > _LARGER * narrowest[result]
            if not (result in needed or is_shared or must_stay(result, read)):
                sources[result] = read
                continue
            if result not in needed:
                held[result] = narrowest[result]
            narrowest[result] = held[result]
        for each in read:
            last_use[each] = number
    return Buffers(tuple(sources), tuple(last_use), tuple(held))


def _users(ops: Sequence[BufferOp], count: int) -> list[list[int]]:
    """For each value the ops that use it, those of its views among them."""
    users: list[list[int]] = [[] for _ in range(count)]
    for number in reversed(range(len(ops))):
        op = ops[number]
        for value in dict.fromkeys(op.operands):
            users[value].append(number)
        if op.name in _VIEWS:
            for old, new in zip(op.operands, op.results, strict=False):
                users[old] = [*users[new], *(each for each in users[old] if each != number)]
    return users


def _needed_in_memory(ops: Sequence[BufferOp], users: Sequence[Sequence[int]]) -> set[int]:
    """The values that an op needs in memory which is no part of others."""
    needs = [op.name not in FUSED | _VIEWS | _READS_FUSED for op in ops]
    return {value for value, own in enumerate(users) if any(needs[user] for user in own)}
