"""Cut an annotated program where it needs what other meshes compute, into phases that are run one after the other.

Alpa sums scalars over meshes (the norm of all gradients; whether all are finite) in the middle of a program; its fork
of XLA had a custom call for it. Here the program has an optimization barrier with the attribute `alpa.cross_mesh`,
which names the operation on the barrier's operand ("SUM;0$1$": the sum over meshes 0 and 1). The caller that runs the
phases exchanges the scalars in between (`phased_executable`).

A phase takes what the program takes; then, for each phase before it, the scalars of that phase as they are after the
exchange, and what that phase has computed that a later one uses too. It gives its scalars and such values; the last
phase gives the program's results. What is cheap and local (see `_is_cheap`) is computed again instead of kept.

Invariants: the phases, with the exchange between them, compute what the program computes; nothing that communicates
or draws random numbers is done twice; and scalars are exchanged in the order of the program.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.op_kinds import ELEMENTWISE
from alpa_cfp.spmd.module.hlo_module import HloModule, program_shape
from alpa_cfp.spmd.module.stages import EXCHANGE, annotated_program, operands_from_outside
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh

Shardings: TypeAlias = dict[Value, ArraySharding]
_MADE_OF_NOTHING = frozenset({"stablehlo.constant", "stablehlo.iota", "sdy.constant"})


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a program.

    Attributes:
        module: Its program.
        exchanged: The operation on each of its first results, which are scalars that every device has whole;
            none in the last phase.
    """

    module: HloModule
    exchanged: tuple[str, ...]

    def with_exchanges(self, text: str) -> str:
        """`text`, which is that of the phase's program, and after it a line for each exchange."""
        target = 'custom_call_target="__builtin$CrossMeshAllReduce"'
        return "\n".join(
            [text, *(f'// With other meshes: {target}, backend_config="{what}"' for what in self.exchanged)]
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """The content of a phase: `operations` lead to `results`; `kept` are values for later phases."""

    operations: frozenset[Operation]
    results: tuple[Value, ...]
    kept: list[Value]


def needs_exchange(module: HloModule) -> bool:
    """Whether the program may need what other meshes compute: the name of the mark stands in it."""
    return EXCHANGE.encode() in module.bytecode


def split_at_exchanges(module: HloModule) -> tuple[Phase, ...]:
    """The phases of an annotated module; none where it needs no other mesh."""
    mesh = module.mesh
    if mesh is None or not needs_exchange(module):
        return ()
    with mlir.context(), ir.Location.unknown():
        parsed = mlir.parse(module.bytecode)  # what is taken from it lives as long as it
        main = mlir.main_function(parsed)
        levels = _levels(main)
        if not levels:
            return ()
        shardings = _shardings(module, main, mesh)
        parts = _parts(main, levels, shardings)
        known, phases = [], []
        for number, part in enumerate(parts):
            marks = levels[number] if number < len(levels) else []
            program = _program(module, mesh, main, part, known, shardings, number if marks else None)
            phases.append(Phase(program, tuple(ir.StringAttr(op.attributes[EXCHANGE]).value for op in marks)))
            known += [*(op.results[0] for op in marks), *part.kept]
    return tuple(phases)


def _levels(main: Operation) -> list[list[Operation]]:
    """The marks of each phase, in program order, which is their order also from one phase to the next.

    A mark stands in a later phase than those that it needs. Every mesh has its marks in the order of the others', but
    not always the same needs; so no mark may overtake another.
    """
    # For each value the number of phases that come before it.
    depth: dict[Value, int] = {}
    levels: list[list[Operation]] = []
    for op in mlir.block_operations(mlir.entry_block(main)):
        before = max((depth.get(value, 0) for value in operands_from_outside(op)), default=0)
        if EXCHANGE in op.attributes:
            if before == len(levels):
                levels.append([])
            levels[-1].append(op)
            before = len(levels)
        for value in op.results:
            depth[value] = before
    return levels


def _shardings(module: HloModule, main: Operation, mesh: LogicalMesh) -> Shardings:
    """The sharding of every value of the program."""
    shardings = dict(zip(mlir.entry_block(main).arguments, module.input_shardings or (), strict=True))
    for op in mlir.block_operations(mlir.entry_block(main)):
        shardings.update(zip(op.results, annotations.result_shardings(op, mesh), strict=True))
    return shardings


def _parts(main: Operation, levels: Sequence[Sequence[Operation]], shardings: Shardings) -> list[_Part]:
    """The content of each phase, with the values that it keeps for later ones."""
    exchanged = {result for level in levels for op in level for result in op.results}
    parts: list[_Part] = []
    targets = [*(tuple(op.operands[0] for op in level) for level in levels), tuple(mlir.terminator(main).operands)]
    for results in targets:
        operations: set[Operation] = set()
        stack = list(results)
        while stack:
            value = stack.pop()
            op = mlir.defining_op(value)
            if op is None or value in exchanged or op in operations:
                continue
            earlier = next((part for part in parts if op in part.operations), None)
            if earlier is None or not isinstance(value.type, ir.RankedTensorType) or _is_cheap(op, shardings):
                operations.add(op)
                stack.extend(operands_from_outside(op))
            elif value not in earlier.kept:
                earlier.kept.append(value)
        parts.append(_Part(frozenset(operations), results, []))
    return parts


def _is_cheap(op: Operation, shardings: Shardings) -> bool:
    """Whether `op` is done without communication in the time that it takes to read what it is made of."""
    if op.name in _MADE_OF_NOTHING:
        return True
    arrays = [value for value in op.operands if mlir.tensor_shape(value)]
    if op.name == "stablehlo.broadcast_in_dim":
        return not arrays
    return op.name in ELEMENTWISE and all(_holds(shardings[value], shardings[op.results[0]]) for value in arrays)


def _holds(sharding: ArraySharding, finer: ArraySharding) -> bool:
    """Whether each device that holds its part by `sharding` holds its part by `finer`."""
    return all(own == other[: len(own)] for own, other in zip(sharding.dims, finer.dims, strict=True))


def _program(
    module: HloModule,
    mesh: LogicalMesh,
    main: Operation,
    part: _Part,
    known: Sequence[Value],
    shardings: Shardings,
    number: int | None,
) -> HloModule:
    """The program of a phase; its number is None for the last one, which may reuse the buffers of arguments."""
    parameters = [*mlir.entry_block(main).arguments, *known]
    results = [*part.results, *part.kept]
    operations = [op for op in mlir.block_operations(mlir.entry_block(main)) if op in part.operations]
    inputs = (*(module.input_shardings or ()), *_between_phases(known, shardings))
    outputs = module.output_shardings or () if number is None else _between_phases(results, shardings)
    new = replace(
        module,
        bytecode=annotated_program(mesh, parameters, operations, results, inputs, outputs),
        shape=program_shape(parameters, results),
        donated=(*module.donated, *(False for _ in known)),
        input_protos=None,
        output_protos=None,
        input_shardings=inputs,
        output_shardings=outputs,
    )
    if number is None:
        return new
    name, nothing = f"{module.name}-phase{number}", (False,) * len(parameters)
    return replace(new, name=name, donated=nothing, aliases=(), fixed_outputs=frozenset())


def _between_phases(values: Sequence[Value], shardings: Shardings) -> tuple[ArraySharding, ...]:
    """The shardings of values between phases: in equal parts, as near as possible to how they were computed."""
    return tuple(shardings[value].dividing(mlir.tensor_shape(value)) for value in values)
