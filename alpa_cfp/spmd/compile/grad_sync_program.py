"""The program that sums the gradients which the accumulate step leaves as one part a device, once a step."""

from collections.abc import Sequence

import numpy as np
from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.builders import element_name
from alpa_cfp.spmd.ir.mlir import Value
from alpa_cfp.spmd.ir.shapes import Shape
from alpa_cfp.spmd.module.partitioned import PartitionedProgram


def unreduced_results(program: PartitionedProgram) -> list[int]:
    """The results of `program` that are still to be summed over devices."""
    return [i for i, axes in enumerate(program.unreduced_outputs) if axes]


def grad_sync_bytecode(program: PartitionedProgram, shapes: Sequence[Shape]) -> bytes:
    """One device's program that sums the unreduced results of `program` in place.

    XLA's combiner puts the all-reduces together while it compiles.

    Args:
        program: The accumulate step.
        shapes: The global shapes of its results.

    Returns:
        A module that takes the unreduced results, in order, and gives them back summed, each in its own buffer.
    """
    results = unreduced_results(program)
    local = [
        f"tensor<{''.join(f'{size}x' for size in program.output_shardings[i].local_shape(shapes[i].dims))}"
        f"{element_name(shapes[i].dtype)}>"
        for i in results
    ]
    with mlir.context(), ir.Location.unknown():
        module = ir.Module.create()
        types = [ir.Type.parse(text) for text in local]
        function, block = mlir.add_main(module, types, types)
        with ir.InsertionPoint(block):
            mlir.create("func.return", [], _all_reduce(program, results, list(block.arguments)))
        aliases = [
            {"tf.aliasing_output": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), i)} for i in range(len(types))
        ]
        mlir.set_function_arguments_attributes(function, "arg_attrs", aliases)
        module.operation.attributes["sym_name"] = ir.StringAttr.get("grad_sync")
        return mlir.to_bytecode(module)


def _all_reduce(program: PartitionedProgram, results: Sequence[int], values: Sequence[Value]) -> list[Value]:
    summed = []
    for channel, (result, value) in enumerate(zip(results, values, strict=True), start=1):
        groups = program.mesh.groups(program.unreduced_outputs[result])
        attributes = {
            "replica_groups": mlir.dense(np.array(groups, dtype=np.int64)),
            "channel_handle": ir.Attribute.parse(f"#stablehlo.channel_handle<handle = {channel}, type = 1>"),
            "use_global_device_ids": ir.UnitAttr.get(),
        }
        reduce = ir.Operation.create(
            "stablehlo.all_reduce", results=[value.type], operands=[value], attributes=attributes, regions=1
        )
        mlir.create_reducer(reduce, "add", mlir.tensor_type(value).element_type)
        summed.append(reduce.results[0])
    return summed
