"""Has parts of a forward pass computed again in the backward pass, instead of being kept for it.

Takes a module, its blocks and a `Recomputation`; gives another module. It is what `jax.checkpoint` would make of these
parts: where the backward pass first needs a value of a part, the ops that make it stand once more, behind a barrier of
what they are made from and of a value of the backward pass. So the compiler neither takes the values that were there
before, nor computes the new ones earlier. Invariants: the module computes the same values, bit for bit where the
compiler fuses alike; nothing is computed again that has side effects or draws numbers of its own.
"""

import dataclasses
from collections.abc import Collection, Iterable
from typing import Any

from jaxlib.mlir import ir

from alpa_cfp.analysis.backward import backward_start
from alpa_cfp.analysis.blocks import Blocks
from alpa_cfp.analysis.forward_parts import forward_parts
from alpa_cfp.analysis.graph import BARRIER, Graph
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.builders import RECOMPUTED
from alpa_cfp.spmd.ir.mlir import Value
from alpa_cfp.spmd.ir.op_kinds import CONTRACTIONS
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.strategies.recomputation import Recomputation

# Ops that are not computed twice, besides products that are to be kept.
_ONCE = frozenset({"stablehlo.rng", "stablehlo.custom_call"})


def recompute(module: HloModule, blocks: Blocks, recomputation: Recomputation) -> HloModule:
    """Returns a module that computes parts of the forward pass again.

    Args:
        module: An unoptimised module; not changed.
        blocks: Its blocks.
        recomputation: What is computed again; parts that it does not have are left out.
    """
    parts, start = forward_parts(blocks), backward_start(blocks)
    chosen = [parts[number] for number in sorted(recomputation.parts, reverse=True) if number < len(parts)]

    def write(parsed: Any) -> None:
        writer = _Writer(parsed, blocks.graph, start, keeps_products=recomputation.keeps_products)
        for part in chosen:
            writer.recompute(part)

    bytecode, _ = mlir.edit(module.bytecode, write)
    return dataclasses.replace(module, bytecode=bytecode)


class _Writer:
    """Writes parts again, the last one first."""

    def __init__(self, parsed: Any, graph: Graph, start: int, *, keeps_products: bool) -> None:
        block = mlir.entry_block(mlir.main_function(parsed))
        self._arguments, self._operations = list(block.arguments), mlir.block_operations(block)
        self._graph, self._start = graph, start
        self._once = _ONCE | CONTRACTIONS if keeps_products else _ONCE
        # What parts behind are computed from; the program keeps these.
        self._kept: set[int] = set()
        # What comes from the first gradients.
        self._late: set[int] = set()
        for op in graph.ops[start:]:
            if op.name in CONTRACTIONS or not self._late.isdisjoint(op.operands):
                self._late.update(op.results)

    def recompute(self, part: range) -> None:
        """Writes the ops of a part again that the backward pass needs values of, if there are any."""
        graph = self._graph
        uses = {value: users for op in part for value in graph.ops[op].results if (users := self._uses(value))}
        again = self._needed(part, [value for value in uses if not self._is_kept(value, part)])
        uses = {value: users for value, users in uses.items() if graph.values[value].op in again}
        if not uses:
            return
        first = min(user for users in uses.values() for user in users)
        made = {value for op in again for value in graph.ops[op].results}
        inputs = dict.fromkeys(value for op in sorted(again) for value in graph.ops[op].operands if value not in made)
        wanted = [value for value in inputs if not self._is_constant(value)]
        late = self._of_backward_pass(first, made)
        if late is None:
            return
        self._kept.update(wanted)
        mapping: dict[Value, Value] = {}
        before = self._operations[first]
        with ir.InsertionPoint(before), before.location:
            values = [self._value(each) for each in (*wanted, late)]
            attributes = {RECOMPUTED.decode(): ir.UnitAttr.get()}
            barrier = mlir.create(BARRIER, [each.type for each in values], values, attributes)
            mapping.update(zip(values[:-1], barrier.results, strict=False))
            for op in sorted(again):
                mlir.clone_into(self._operations[op], mapping)
        if late in graph.ops[first].operands:
            self._replace([first], self._value(late), barrier.results[len(wanted)])
        for value, users in uses.items():
            self._replace(users, self._value(value), mapping[self._value(value)])

    def _uses(self, value: int) -> list[int]:
        """The ops of the backward pass that use a value."""
        return [user for user in self._graph.values[value].users if user >= self._start]

    def _is_kept(self, value: int, part: range) -> bool:
        """Whether a value is not computed again: it is constant, of another part, kept anyway, or costs too much."""
        op = self._graph.values[value].op
        return (
            op is None
            or op not in part
            or value in self._kept
            or self._graph.constant_derived[op]
            or self._graph.ops[op].name in self._once
        )

    def _is_constant(self, value: int) -> bool:
        op = self._graph.values[value].op
        return op is not None and self._graph.constant_derived[op]

    def _needed(self, part: range, values: Iterable[int]) -> set[int]:
        """The ops of a part from which values are computed, up to values that are kept."""
        found, worklist = set[int](), list(values)
        while worklist:
            value = worklist.pop()
            op = self._graph.values[value].op
            if op is None or op in found or self._is_kept(value, part):
                continue
            found.add(op)
            worklist += self._graph.ops[op].operands
        return found

    def _of_backward_pass(self, first: int, again: Collection[int]) -> int | None:
        """A value of the backward pass that is there before an op: an operand of it, or the last one."""
        graph = self._graph
        for value in graph.ops[first].operands:
            if value not in again and value in self._late:
                return value
        before = (value for op in range(first - 1, self._start - 1, -1) for value in graph.ops[op].results)
        return next((value for value in before if value in self._late), None)

    def _value(self, value: int) -> Value:
        known = self._graph.values[value]
        if known.op is None:
            return self._arguments[known.position]
        return self._operations[known.op].results[known.position]

    def _replace(self, users: Iterable[int], old: Value, new: Value) -> None:
        for user in users:
            op = self._operations[user]
            for each in (op, *mlir.inner_operations(op)):
                for position, operand in enumerate(each.operands):
                    if operand == old:
                        each.operands[position] = new
