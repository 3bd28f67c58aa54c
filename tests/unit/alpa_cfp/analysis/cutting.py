"""Cuts a block's members out of a program and asks Shardy what a partition of them would communicate.

Takes the program's bytecode, its `Blocks` and which of a block's factors each mesh axis splits; gives the names of the
collectives that Shardy's own passes insert when the entries' operands and results are split that way and all else is
left to propagation. Slicing what every device has whole is no communication.
"""

from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir

from alpa_cfp.analysis.blocks import BlockFactor, Blocks, ParallelBlock
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.spmd.shardings.sharding_rules import run_shardy_passes

_PASSES = (
    "sdy-propagation-pipeline,"
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true}),func.func(sdy-reshard-to-collectives)"
)
_LOCAL = {"sdy.all_slice", "sdy.mesh", "sdy.constant", "sdy.sharding_constraint"}


# For each mesh axis the factor that it splits and its size.
Strategy = Sequence[tuple[BlockFactor, int]]


def collectives(
    bytecode: bytes, blocks: Blocks, block: ParallelBlock, strategy: Strategy, loops: tuple[int, ...] = ()
) -> list[str]:
    """The collectives in the members of `block` under `strategy`; `blocks` are those of `loops` if there are any."""
    graph = blocks.graph
    with mlir.context(), ir.Location.unknown():
        program = mlir.parse(bytecode)
        sources = [mlir.entry_block(mlir.main_function(program))]
        if loops:
            of_main = mlir.block_operations(sources[0])
            sources = [of_main[loop].regions[1].blocks[0] for loop in loops]
        operations = [op for source in sources for op in mlir.block_operations(source)[:-1]]
        types: list[Any] = []
        for source in sources:
            types += [argument.type for argument in source.arguments]
            types += [result.type for op in mlir.block_operations(source)[:-1] for result in op.results]
        needed = _with_free_operands(blocks, block)
        made = {result for op in needed for result in graph.ops[op].results}
        inputs = sorted({v for op in needed for v in graph.ops[op].operands} - made)
        outputs = [output.value for output in block.outputs]

        module = ir.Module.parse("module {}")
        main, body = mlir.add_main(module, [types[v] for v in inputs], [types[v] for v in outputs])
        made_values: dict[int, Any] = dict(zip(inputs, body.arguments, strict=True))
        with ir.InsertionPoint(body):
            for op in needed:
                clone = mlir.clone_into(operations[op], {})
                for position in range(len(clone.operands)):
                    clone.operands[position] = made_values[graph.ops[op].operands[position]]
                made_values.update(zip(graph.ops[op].results, clone.results, strict=True))
            mlir.create("func.return", [], [made_values[v] for v in outputs])
        mesh = LogicalMesh(tuple(parts for _, parts in strategy))
        annotations.declare_mesh(module, mesh)
        _annotate(blocks, block, strategy, inputs, main, made_values)
        run_shardy_passes(module, _PASSES)
        found = mlir.block_operations(mlir.entry_block(mlir.main_function(module)))
        return [op.name for op in found if op.name.startswith("sdy.") and op.name not in _LOCAL]


def _with_free_operands(blocks: Blocks, block: ParallelBlock) -> list[int]:
    graph = blocks.graph
    needed: set[int] = set()
    waiting = list(block.members)
    while waiting:
        op = waiting.pop()
        if op not in needed:
            needed.add(op)
            producers = (graph.producer(operand) for operand in graph.ops[op].operands)
            waiting += [each.index for each in producers if each is not None and graph.constant_derived[each.index]]
    return sorted(needed)


def split_dims(blocks: Blocks, block: ParallelBlock, strategy: Strategy) -> dict[int, dict[int, list[int]]]:
    """The operands and results of a block's entries: value -> dim -> the mesh axes that split it, major first."""
    graph = blocks.graph
    split: dict[int, dict[int, list[int]]] = {}
    for entry in block.entries:
        op = graph.ops[entry.op]
        if entry.op not in block.members or op.rule is None:
            continue
        of_entry: dict[int, list[int]] = {}
        for axis, (factor, _) in enumerate(strategy):
            for place, rule_factor in factor.places:
                if place == entry.op:
                    of_entry.setdefault(rule_factor, []).append(axis)
        tensors = zip((*op.operands, *op.results), (*op.rule.operands, *op.rule.results), strict=True)
        for value, dims in tensors:
            majors = (op.rule.major_factor(factors) for factors in dims)
            chosen = {dim: of_entry[major] for dim, major in enumerate(majors) if major in of_entry}
            split.setdefault(value, {}).update(chosen)
    return split


def _annotate(
    blocks: Blocks, block: ParallelBlock, strategy: Strategy, inputs: list[int], main: Any, values: dict[int, Any]
) -> None:
    """Split the operands and results of the entries among the members."""
    names = LogicalMesh((1,) * len(strategy)).axis_names
    attributes = mlir.function_arguments_attributes(main, "arg_attrs")
    for value, dims in split_dims(blocks, block, strategy).items():
        of_dims = (dims.get(dim, ()) for dim in range(len(blocks.graph.shape(value))))
        inner = ", ".join("{" + ", ".join(f'"{names[axis]}"' for axis in axes) + "}" for axes in of_dims)
        if value in inputs:
            attributes[inputs.index(value)][annotations.SHARDING] = ir.Attribute.parse(
                f"#sdy.sharding<@mesh, [{inner}]>"
            )
        elif (producer := mlir.defining_op(values[value])) is not None:
            producer.attributes[annotations.SHARDING] = ir.Attribute.parse(
                f"#sdy.sharding_per_value<[<@mesh, [{inner}]>]>"
            )
    mlir.set_function_arguments_attributes(main, "arg_attrs", attributes)
