"""The program as it is compiled: with the module's name, and with the buffers marked that results may reuse.

Takes a module and its partitioned program; gives bytecode. Invariant: a result reuses the buffer of an argument only if
both have one shape and one sharding; the buffer of any other donated argument is free for what comes.
"""

import itertools
from typing import Any

from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import PartitionedProgram
from alpa_cfp.spmd.propagation import donation_pairs

_ALIASED, _DONOR = "tf.aliasing_output", "jax.buffer_donor"


def with_aliases(module: HloModule, program: PartitionedProgram) -> bytes:
    """The program with the buffers that results may reuse marked, and with the module's name."""
    pairs = {parameter: result for result, parameter in donation_pairs(module)}
    donated = {i for i, is_donated in enumerate(module.donated) if is_donated} | set(pairs)
    shapes = module.shape

    def change(parsed: Any) -> None:
        parsed.operation.attributes["sym_name"] = ir.StringAttr.get(module.name)
        main = mlir.main_function(parsed)
        for argument in mlir.entry_block(main).arguments:
            argument.set_location(ir.Location.name("param"))  # the name that parameters have in alpa's HLO texts
        attributes = mlir.function_arguments_attributes(main, "arg_attrs")
        # Of a program that names a mesh JAX itself says what is donated.
        for each, name in itertools.product(attributes, (_ALIASED, _DONOR)):
            each.pop(name, None)
        for parameter in donated:
            result = pairs.get(parameter)
            if (
                result is not None
                and program.input_shardings[parameter] == program.output_shardings[result]
                and shapes.parameters[parameter] == shapes.results[result]
            ):
                attributes[parameter][_ALIASED] = mlir.i32(result)
            else:
                attributes[parameter][_DONOR] = ir.BoolAttr.get(True)
        mlir.set_function_arguments_attributes(main, "arg_attrs", attributes)

    return mlir.edit(program.bytecode, change)[0]
