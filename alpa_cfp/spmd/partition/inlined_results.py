"""One device's program without results that whoever uses them computes himself: larger copies of smaller arrays.

A part of a program gives other parts what they use. Where that is a broadcast of a smaller array, XLA computes it
inside the ops that use it when both parts are one program, and never writes it; by itself the part would write it,
which of a softmax can be much of its time. `costs.work` counts such results as not written, too. Takes a partitioned
module; gives one that returns the smaller arrays. It is only timed. Invariant: each result is of the same values.
"""

from dataclasses import replace
from typing import Any

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Value
from alpa_cfp.spmd.module.hlo_module import HloModule, array_shape
from alpa_cfp.spmd.module.partitioned import size_bytes
from alpa_cfp.spmd.shardings.sharding import ArraySharding

_COPYING = frozenset(("stablehlo.broadcast_in_dim", "stablehlo.reshape"))


def without_broadcasts(module: HloModule) -> HloModule:
    """Returns the module with smaller results where these can be; one that XLA partitions is returned as it is."""
    program = module.partitioned
    if program is None or program.partitioner != "shardy":
        return module

    def change(parsed: Any) -> dict[int, Any]:
        main = mlir.main_function(parsed)
        end = mlir.terminator(main)
        found = {}
        for number, result in enumerate(end.operands):
            source = _source(result)
            if size_bytes(source) < size_bytes(result) and not program.unreduced_outputs[number]:
                end.operands[number] = source
                found[number] = array_shape(source.type)
        mlir.update_function_type(main)
        return found

    bytecode, smaller = mlir.edit(program.bytecode, change)
    if not smaller:
        return module
    shapes, shardings = list(module.shape.results), list(program.output_shardings)
    for number, shape in smaller.items():
        shapes[number] = shape
        shardings[number] = ArraySharding.replicated(program.mesh, len(shape.dims))  # a device's own array
    return replace(
        module,
        shape=replace(module.shape, results=tuple(shapes)),
        partitioned=replace(program, bytecode=bytecode, output_shardings=tuple(shardings)),
    )


def _source(value: Value) -> Value:
    """The smallest array of which a value is made by copying."""
    least, op = value, mlir.defining_op(value)
    while op is not None and op.name in _COPYING:
        value = op.operands[0]
        least, op = min(value, least, key=size_bytes), mlir.defining_op(value)
    return least
