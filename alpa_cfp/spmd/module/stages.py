"""Cut an annotated program at alpa's pipeline markers into one program for each stage.

A marker is a run of `stablehlo.optimization_barrier`s with the attribute `alpa.marker = "<stage>$<kind>"`: what goes
through the "start" barriers becomes the parameters of the stage's program, what goes through the "end" barriers its
results. This is what the forked jaxlib's pass SliceAutoShardedStages did. Invariant: an array that crosses from the
program into a stage, or from one stage into another, has the same sharding on both sides.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.module.hlo_module import HloModule, program_shape
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh

MARKER = "alpa.marker"
# The name of a stage that is an update ends so (alpa/pipeline_parallel/apply_grad.py).
UPDATE_SUFFIX = "apply_grad"
# Of the barriers at which scalars are exchanged with other meshes (see `phases`); they belong here as they must stay.
EXCHANGE = "alpa.cross_mesh"


@dataclass(frozen=True, slots=True)
class _Stage:
    name: str
    start: tuple[Operation, ...]  # a start marker without operands lowers to nothing
    end: tuple[Operation, ...]

    @property
    def inputs(self) -> list[Value]:
        return [value for op in self.start for value in op.results]

    @property
    def outputs(self) -> list[Value]:
        return [value for op in self.end for value in op.results]

    @property
    def computed(self) -> list[Value]:
        """The operands of the end marker."""
        return [value for op in self.end for value in op.operands]


@dataclass(frozen=True, slots=True)
class StageEnds:
    """The inputs and outputs of a stage, behind its markers.

    Attributes:
        name: The stage's name.
        inputs, outputs: The values, by number: a program's parameters come first, then the results of its operations.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def stage_ends(module: HloModule) -> tuple[StageEnds, ...]:
    """The ends of the stages of `module`, in program order, which need not be annotated.

    Raises:
        ValueError: a start marker has no end.
    """
    with mlir.context():
        parsed = mlir.parse(module.bytecode)
        main = mlir.main_function(parsed)
        block = mlir.entry_block(main)
        results = (result for op in mlir.block_operations(block) for result in op.results)
        numbers = {value: number for number, value in enumerate([*block.arguments, *results])}
        return tuple(
            StageEnds(
                stage.name,
                tuple(numbers[value] for value in stage.inputs),
                tuple(numbers[value] for value in stage.outputs),
            )
            for stage in _find_stages(main)
        )


def slice_stages(module: HloModule) -> list[tuple[str, HloModule]]:
    """The stages of `module`, in program order, each with its name.

    Raises:
        ValueError: the module is not annotated, a start marker has no end, or a stage uses a value that did not come
            through its start marker.
    """
    if module.mesh is None:
        raise ValueError("slice_stages needs an annotated module: run the auto-sharding pass on it first")
    mesh = module.mesh
    with mlir.context(), ir.Location.unknown():
        parsed = mlir.parse(module.bytecode)
        main = mlir.main_function(parsed)
        shardings = _boundary_shardings(main, mesh)
        return [(stage.name, _cut(module, mesh, stage, shardings)) for stage in _find_stages(main)]


def has_stages(module: HloModule) -> bool:
    """Whether `module` has pipeline markers."""
    with mlir.context():
        parsed = mlir.parse(module.bytecode)
        return bool(_find_stages(mlir.main_function(parsed)))


def _find_stages(main: Operation) -> list[_Stage]:
    markers: dict[str, dict[str, tuple[Operation, ...]]] = {}
    marked = [op for op in mlir.block_operations(mlir.entry_block(main)) if MARKER in op.attributes]
    for marker, run in itertools.groupby(marked, lambda op: ir.StringAttr(op.attributes[MARKER]).value):
        name, kind = marker.rsplit("$", 1)
        if kind in ("start", "end"):
            if kind in markers.setdefault(name, {}):
                raise ValueError(f"pipeline marker {name!r} starts or ends twice")
            markers[name][kind] = tuple(run)
    for name, pair in markers.items():
        if "end" not in pair:
            raise ValueError(f"pipeline marker {name!r} has a start and no end")
    return [_Stage(name, pair.get("start", ()), pair["end"]) for name, pair in markers.items()]


def _boundary_shardings(main: Operation, mesh: LogicalMesh) -> dict[Value, ArraySharding]:
    """The sharding of every value that goes into, comes out of, or passes between markers."""
    inputs, outputs = annotations.boundary(main, mesh)
    known = dict(zip(mlir.entry_block(main).arguments, inputs, strict=True))
    for op in mlir.block_operations(mlir.entry_block(main)):
        if MARKER in op.attributes:
            for operand, result, sharding in zip(
                op.operands, op.results, annotations.result_shardings(op, mesh), strict=True
            ):
                known[result] = known.get(operand) or _accumulator(operand, known) or sharding
    for value, sharding in zip(mlir.terminator(main).operands, outputs, strict=True):
        known[value] = sharding
    return known


def _accumulator(value: Value, known: dict[Value, ArraySharding]) -> ArraySharding | None:
    """The sharding of `old` if `value` is `old + gradient` and `old` a parameter that is used for nothing else.

    A sum that is accumulated over calls needs the same sharding before and after each of them.
    """
    op = mlir.defining_op(value)
    if op is None or op.name != "stablehlo.add":
        return None
    return next((known[old] for old in op.operands if old in known and len(mlir.users(old)) == 1), None)


def _fixed_results(module: HloModule, stage: _Stage) -> frozenset[int]:
    """The results of the stage that are results of the program for which the user has set a sharding."""
    returned = list(mlir.block_operations(stage.end[0].block)[-1].operands)
    fixed = {returned[i] for i in module.fixed_outputs}
    return frozenset(i for i, value in enumerate(stage.outputs) if value in fixed)


def _cut(module: HloModule, mesh: LogicalMesh, stage: _Stage, shardings: dict[Value, ArraySharding]) -> HloModule:
    inputs = tuple(shardings[value] for value in stage.inputs)
    outputs = tuple(shardings[value] for value in stage.outputs)
    return HloModule(
        name=f"{module.name}-{stage.name}",
        bytecode=annotated_program(mesh, stage.inputs, _operations_between(stage), stage.computed, inputs, outputs),
        shape=program_shape(stage.inputs, stage.computed),
        donated=(False,) * len(inputs),
        mesh=mesh,
        input_shardings=inputs,
        output_shardings=outputs,
        fixed_outputs=_fixed_results(module, stage),
        solved=module.solved,
        combiner_limits=module.combiner_limits,
    )


def annotated_program(
    mesh: LogicalMesh,
    parameters: Sequence[Value],
    operations: Iterable[Operation],
    results: Sequence[Value],
    inputs: Sequence[ArraySharding],
    outputs: Sequence[ArraySharding],
) -> bytes:
    """The program that computes `results` of `parameters` by copies of `operations`, with its boundary's shardings."""
    module = ir.Module.create()
    function, block = mlir.add_main(module, [v.type for v in parameters], [v.type for v in results])
    mapping: dict[Value, Value] = dict(zip(parameters, block.arguments, strict=True))
    with ir.InsertionPoint(block):
        for op in operations:
            mlir.clone_into(op, mapping)
        mlir.create("func.return", [], [mapping[value] for value in results])
    annotations.declare_mesh(module, mesh)
    annotations.set_boundary(function, inputs, outputs)
    return mlir.to_bytecode(module)


def _operations_between(stage: _Stage) -> list[Operation]:
    """The operations that compute the end marker's operands from the start marker's results, in program order."""
    # Another mesh waits for what this one gives, also where nothing here uses what comes back.
    exchanges = _exchanges_between(stage)
    needed: set[Operation] = set(exchanges)
    inputs = set(stage.inputs)
    stack = [*stage.computed, *(value for op in exchanges for value in op.operands)]
    while stack:
        value = stack.pop()
        if value in inputs:
            continue
        op = mlir.defining_op(value)
        if op is None or MARKER in op.attributes:
            raise ValueError(f"stage {stage.name!r} uses a value that does not come through its start marker")
        if op not in needed:
            needed.add(op)
            stack.extend(operands_from_outside(op))
    return [op for op in mlir.block_operations(stage.end[0].block) if op in needed]


def _exchanges_between(stage: _Stage) -> list[Operation]:
    """The exchanges with other meshes that stand between the stage's markers."""
    operations = mlir.block_operations(stage.end[0].block)
    if not stage.start:
        return []
    return [
        op
        for op in operations[operations.index(stage.start[-1]) : operations.index(stage.end[0])]
        if EXCHANGE in op.attributes
    ]


def operands_from_outside(op: Operation) -> list[Value]:
    """The operands of `op` and of operations inside its regions, as far as they are defined outside `op`."""
    inner = mlir.inner_operations(op)
    local = {value for nested in inner for value in nested.results}
    for each in (op, *inner):
        local.update(argument for region in each.regions for block in region.blocks for argument in block.arguments)
    return [*op.operands, *(value for nested in inner for value in nested.operands if value not in local)]
