"""Write a placement into the module: a sharding on every op, and on every operand that has to be moved for its user.

Invariant: the only communication that the annotated module asks for is what the placement says: partial sums are
reduced where a strategy reduces them, and values move where a constraint stands. What costs nothing to make (constants,
iotas, broadcast constants) is made anew for each place in which it is needed.
"""

from typing import Any

from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from alpa_on_jax.xla_extension.auto_sharding.graph import Graph, Instruction
from alpa_on_jax.xla_extension.auto_sharding.placement import Placement, boundary_specs, is_undecided
from alpa_on_jax.xla_extension.auto_sharding.specs import Mesh, Spec

Shardings = tuple[ArraySharding, ...]


def annotate(
    parsed: Any, graph: Graph, placement: Placement, mesh: Mesh, logical_mesh: LogicalMesh
) -> tuple[Shardings, Shardings]:
    """Annotate the module `parsed`, of which `graph` is the graph, in place; gives its boundary shardings."""
    main = mlir.main_function(parsed)
    annotations.declare_mesh(parsed, logical_mesh)
    writer = _Writer(placement, mesh, logical_mesh)
    by_op: dict[Operation, list[Instruction]] = {}
    for instruction in graph.instructions:
        if instruction.opcode == "parameter":
            continue
        by_op.setdefault(mlir.defining_op(instruction.value), []).append(instruction)
    for op, results in by_op.items():
        writer.place_operands(op, results)
        writer.place_results(op, results)
    writer.place_returned(mlir.terminator(main), graph)
    specs = boundary_specs(placement, graph)
    inputs, outputs = (tuple(mesh.to_sharding(spec, logical_mesh) for spec in side) for side in specs)
    annotations.set_boundary(main, inputs, outputs)
    return inputs, outputs


class _Writer:
    def __init__(self, placement: Placement, mesh: Mesh, logical_mesh: LogicalMesh):
        self._placement = placement
        self._mesh = mesh
        self._logical_mesh = logical_mesh
        self._moved: dict[tuple[Instruction, Spec], Value] = {}

    def place_operands(self, op: Operation, results: list[Instruction]) -> None:
        """Bring the operands of `op` to where it needs them."""
        if results[0].opcode == "marker":
            for i, result in enumerate(results):
                self._place_operand(op, i, result, result.operands[0], self._placement.required_specs(result)[0])
            return
        first = results[0]
        for i, (operand, spec) in enumerate(zip(first.operands, self._placement.required_specs(first), strict=True)):
            self._place_operand(op, i, first, operand, spec)

    def _place_operand(
        self, op: Operation, index: int, user: Instruction, operand: Instruction, spec: Spec | None
    ) -> None:
        if operand.rank == 0:
            return
        if spec is None:
            spec = self._placement.seen_spec(operand)
        if is_undecided(operand):
            if not is_undecided(user):
                op.operands[index] = self._made_for(op, operand, spec)
            return
        if spec == self._placement.spec(operand):
            return
        if (user, operand) in self._placement.private:
            op.operands[index] = self._constrained(op, operand.value, spec)
            return
        op.operands[index] = self._moved_to(op, operand, spec)

    def _moved_to(self, before: Operation, operand: Instruction, spec: Spec) -> Value:
        key = (operand, spec)
        if key not in self._moved:
            self._moved[key] = self._constrained(before, operand.value, spec)
        return self._moved[key]

    def _constrained(self, before: Operation, value: Value, spec: Spec) -> Value:
        sharding = ir.Attribute.parse(self._sharding(spec).to_sdy())
        with ir.InsertionPoint(before), before.location:
            return mlir.create("sdy.sharding_constraint", [value.type], [value], {"sharding": sharding}).results[0]

    def _made_for(self, before: Operation, instruction: Instruction, spec: Spec) -> Value:
        """A copy of a value that costs nothing, sharded as `spec`."""
        key = (instruction, spec)
        if key not in self._moved:
            op = mlir.defining_op(instruction.value)
            with ir.InsertionPoint(before):
                clone = mlir.clone_into(op, {})
            annotations.set_result_shardings(clone, [self._sharding(spec)])
            self._moved[key] = clone.results[0]
        return self._moved[key]

    def place_results(self, op: Operation, results: list[Instruction]) -> None:
        """Write the shardings of the results of `op`; a result that is changed at once is moved behind it."""
        if is_undecided(results[0]):
            return
        of_value = {result.value: result for result in results}
        shardings = [
            self._sharding(self._placement.computed_spec(of_value[value]))
            if value in of_value
            else ArraySharding.replicated(self._logical_mesh, 0)
            for value in op.results
        ]
        annotations.set_result_shardings(op, shardings)
        for result in results:
            spec = self._placement.spec(result)
            if spec != self._placement.computed_spec(result):
                self._move_all_uses(op, result, spec)

    def _move_all_uses(self, op: Operation, result: Instruction, spec: Spec) -> None:
        sharding = ir.Attribute.parse(self._sharding(spec).to_sdy())
        with ir.InsertionPoint.after(op), op.location:
            moved = mlir.create("sdy.sharding_constraint", [result.value.type], [result.value], {"sharding": sharding})
        result.value.replace_all_uses_except(moved.results[0], moved)
        result.value = moved.results[0]

    def place_returned(self, terminator: Operation, graph: Graph) -> None:
        """Bring the results of the program to their shardings."""
        for i, result in enumerate(graph.results):
            spec = self._placement.seen_spec(result)
            if result.rank and spec != self._placement.spec(result):
                terminator.operands[i] = self._moved_to(terminator, result, spec)

    def _sharding(self, spec: Spec) -> ArraySharding:
        return self._mesh.to_sharding(spec, self._logical_mesh)
