"""Reads a StableHLO function into a `Graph`.

Takes bytecode with one function and no calls (`HloModule.bytecode`); gives a `Graph`, which does not refer to MLIR.
One pass over the ops: types, attributes and rules are uniqued by MLIR, so each distinct one is read once.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from alpa_cfp.analysis.collection import without_collection
from alpa_cfp.analysis.graph import BARRIER, CONSTRAINT, ISLAND, MARK, STEP_BARRIER, WHILE, Graph, Loop, Op, Value
from alpa_cfp.analysis.rules import RULE_ATTRIBUTE, FactorKind, Rule, read_rule
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.step_barriers import is_step_barrier
from alpa_cfp.spmd.ir.trip_counts import trip_count
from alpa_cfp.spmd.module.stages import MARKER
from alpa_cfp.spmd.shardings.sharding_rules import run_shardy_passes

# Ops without inputs.
_SOURCES = frozenset({"stablehlo.constant", "stablehlo.iota"})
# Attributes that do not affect what a program computes.
_IGNORED = frozenset({RULE_ATTRIBUTE, "mhlo.frontend_attributes", "mhlo.sharding", "sdy.sharding", "xla_metadata"})
_LITERAL_BYTES = 64


@without_collection
def read_graph(bytecode: bytes) -> Graph:
    """Returns the graph of `main`.

    Args:
        bytecode: A StableHLO module of one function without calls.

    Raises:
        ir.MLIRError: the bytecode is damaged.
    """
    with mlir.context():
        module = mlir.parse(bytecode)
        run_shardy_passes(module, "func.func(sdy-populate-op-sharding-rules)")
        block = mlir.entry_block(mlir.main_function(module))
        return _Reader().read(block, ())


@dataclass
class _Reader:
    """Reads blocks; caches the types, attributes and rules that have been read."""

    types: dict[Any, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    texts: dict[Any, str] = field(default_factory=dict)
    rules: dict[Any, Rule] = field(default_factory=dict)

    def read(self, block: Any, captured: tuple[Any, ...]) -> Graph:
        """Returns the graph of one block; `captured` are the outer values that it uses."""
        ids: dict[Any, int] = {}
        kinds: list[tuple[tuple[int, ...], str, int | None, int]] = []
        users: list[list[int]] = []

        def add(value: Any, op: int | None, position: int) -> int:
            shape, dtype = self.type(value.type)
            ids[value] = len(kinds)
            kinds.append((shape, dtype, op, position))
            users.append([])
            return len(kinds) - 1

        parameters = tuple(add(value, None, i) for i, value in enumerate((*block.arguments, *captured)))
        operations = mlir.block_operations(block)
        ops: list[Op] = []
        loops: list[Loop] = []
        constant_derived: list[bool] = []
        for index, op in enumerate(operations[:-1]):
            name = STEP_BARRIER if is_step_barrier(op) else op.name
            inner_captured = captured_values(op) if len(op.regions) else ()
            operands = tuple(ids[value] for value in (*op.operands, *inner_captured))
            results = tuple(add(value, index, i) for i, value in enumerate(op.results))
            for operand in operands:
                if not users[operand] or users[operand][-1] != index:
                    users[operand].append(index)
            if name == WHILE:
                body = op.regions[1].blocks[0]
                loop = Loop(index, self.read(body, inner_captured), trip_count(op))
                loops.append(loop)
            shapes = tuple(kinds[value][0] for value in operands)
            rule = self.rule(op, name, shapes)
            ops.append(Op(index, name, operands, results, self.attributes(op, name), rule))
            producers = [kinds[value][2] for value in operands]
            constant_derived.append(
                name in _SOURCES
                or (bool(operands) and name != WHILE and all(p is not None and constant_derived[p] for p in producers))
            )
        return Graph(
            ops=tuple(ops),
            values=tuple(Value(i, *kind, tuple(users[i])) for i, kind in enumerate(kinds)),
            parameters=parameters,
            results=tuple(ids[value] for value in operations[-1].operands),
            constant_derived=tuple(constant_derived),
            without_rule=tuple(
                op.index for op in ops if op.rule is None and not constant_derived[op.index] and op.name != ISLAND
            ),
            loops=tuple(loops),
        )

    def type(self, mlir_type: Any) -> tuple[tuple[int, ...], str]:
        found = self.types.get(mlir_type)
        if found is None:
            if isinstance(mlir_type, ir.RankedTensorType):
                found = tuple(mlir_type.shape), str(mlir_type.element_type)
            else:
                found = (), str(mlir_type)
            self.types[mlir_type] = found
        return found

    def rule(self, op: Any, name: str, operands: tuple[tuple[int, ...], ...]) -> Rule | None:
        if RULE_ATTRIBUTE in op.attributes:
            attribute = op.attributes[RULE_ATTRIBUTE]
            found = self.rules.get(attribute)
            if found is None:
                found = self.rules[attribute] = read_rule(attribute)
            return found
        if name in (BARRIER, STEP_BARRIER, CONSTRAINT):
            return _pairwise_rule(operands)
        return None

    def attributes(self, op: Any, name: str) -> str:
        """Returns canonical text of the attributes and regions of an op."""
        attributes = op.attributes
        if name == BARRIER:
            # The name of the stage that it marks is left out.
            return MARK if MARKER in attributes else ""
        parts = [f"{name}={self.text(attributes[name])}" for name in attributes if name not in _IGNORED]
        parts += [self.region(region) for region in op.regions]
        return ", ".join(parts)

    def text(self, attribute: Any) -> str:
        found = self.texts.get(attribute)
        if found is None:
            found = self.texts[attribute] = attribute_text(attribute)
        return found

    def region(self, region: Any) -> str:
        """Returns the text of a region with numbered values, so that equal regions have equal texts."""
        numbers: dict[Any, int] = {}
        lines: list[str] = []
        for block in region.blocks:
            self.number(block.arguments, numbers)
            for op in mlir.walk(block):
                for inner in (inner for nested in op.regions for inner in nested.blocks):
                    self.number(inner.arguments, numbers)
                operands = ",".join(str(numbers.get(value, "outer")) for value in op.operands)
                self.number(op.results, numbers)
                types = ",".join(str(self.type(value.type)) for value in op.results)
                attributes = ",".join(
                    f"{name}={self.text(op.attributes[name])}" for name in op.attributes if name not in _IGNORED
                )
                lines.append(f"{op.name}({operands}){types}{attributes}")
        return "{" + ";".join(lines) + "}"

    @staticmethod
    def number(values: Any, numbers: dict[Any, int]) -> None:
        for value in values:
            numbers[value] = len(numbers)


def attribute_text(attribute: Any) -> str:
    """Returns an attribute as text; a large array as a digest of its elements."""
    if isinstance(attribute, ir.DenseElementsAttr) and not attribute.is_splat:
        try:
            array = np.asarray(attribute)
        except (TypeError, ValueError, RuntimeError):  # element types without a buffer, such as bf16 or i1
            return hashlib.sha256(str(attribute).encode()).hexdigest()
        if array.nbytes > _LITERAL_BYTES:
            return f"{attribute.type} {hashlib.sha256(array.tobytes()).hexdigest()}"
    return str(attribute)


def captured_values(op: Any) -> tuple[Any, ...]:
    """Returns the outer values that an op's regions use, each once."""
    inside: set[Any] = set()
    used: dict[Any, None] = {}
    for region in op.regions:
        for block in region.blocks:
            inside.update(block.arguments)
            for inner in mlir.walk(block):
                inside.update(inner.results)
                inside.update(v for nested in inner.regions for each in nested.blocks for v in each.arguments)
                used.update(dict.fromkeys(inner.operands))
    return tuple(value for value in used if value not in inside)


def _pairwise_rule(shapes: tuple[tuple[int, ...], ...]) -> Rule:
    """The rule of an op whose i-th result is its i-th operand."""
    sizes = tuple(size for shape in shapes for size in shape)
    tensors: list[tuple[tuple[int, ...], ...]] = []
    start = 0
    for shape in shapes:
        tensors.append(tuple((start + i,) for i in range(len(shape))))
        start += len(shape)
    return Rule(sizes, (FactorKind.PLAIN,) * len(sizes), tuple(tensors), tuple(tensors))
