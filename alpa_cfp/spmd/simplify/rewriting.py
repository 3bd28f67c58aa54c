"""Apply rewrite rules to the operations of one block until none applies.

Takes a block and, for each operation name, the rules for it. A rule looks at one operation and at what made its
operands, and gives the value that stands in for the operation's one result, or None. Invariants: only operations that
stand directly in the block are rewritten; a value is replaced by one of the same type; nothing is erased, so handles
to operations stay valid, and what became unused is left to `merging.merge_equal_values`.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value

Rule: TypeAlias = Callable[[Operation], Value | None]


def rewrite(block: Any, rules: Mapping[str, Sequence[Rule]]) -> int:
    """Rewrite `block` in place by `rules` (operation name -> rules, tried in order); returns how often one applied.

    Each operation is looked at once in program order, and again whenever one of its operands was replaced, so the time
    is proportional to the operations plus the rewrites.
    """
    worklist = _Worklist(block, frozenset(rules))
    count = 0
    while (op := worklist.next()) is not None:
        result = op.results[0]
        if not is_used(result):
            continue
        replacement = _first_replacement(op, rules[op.name])
        if replacement is None:
            continue
        count += 1
        worklist.add_new(replacement)
        users = mlir.users(result)
        result.replace_all_uses_with(replacement)
        for user in users:
            worklist.add(user)
    return count


class _Worklist:
    """The operations of a block, of some names, that are still to be looked at; each stands in it once at most."""

    def __init__(self, block: Any, names: frozenset[str]):
        self._names = names
        self._known: set[Operation] = set()
        self._queue: deque[Operation] = deque()
        self._queued: set[Operation] = set()
        for op in mlir.block_operations(block):
            self._known.add(op)
            self.add(op)

    def next(self) -> Operation | None:
        if not self._queue:
            return None
        op = self._queue.popleft()
        self._queued.discard(op)
        return op

    def add(self, op: Operation) -> None:
        """Look at `op` (again), unless it stands in a region inside the block."""
        if op in self._known and op not in self._queued and op.name in self._names:
            self._queue.append(op)
            self._queued.add(op)

    def add_new(self, value: Value) -> None:
        """Look at the operations that a rule has created to compute `value`, operands before their users."""
        op = mlir.defining_op(value)
        if op is None or op in self._known:
            return
        for operand in op.operands:
            self.add_new(operand)
        self._known.add(op)
        self.add(op)


def _first_replacement(op: Operation, rules: Sequence[Rule]) -> Value | None:
    with ir.InsertionPoint(op), op.location:
        for rule in rules:
            if (replacement := rule(op)) is not None:
                return replacement
    return None


def is_used(value: Value) -> bool:
    """Whether any operation uses `value`."""
    return next(iter(value.uses), None) is not None


def live_users(value: Value) -> list[Operation]:
    """The operations that use `value`, without those whose own results nothing uses (any more)."""
    return [op for op in mlir.users(value) if not op.results or any(is_used(result) for result in op.results)]


def made_by(value: Value, name: str) -> Operation | None:
    """The operation that made `value` if its name is `stablehlo.<name>`, else None."""
    op = mlir.defining_op(value)
    return op if op is not None and op.name == f"stablehlo.{name}" else None
