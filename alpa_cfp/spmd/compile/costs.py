"""Counting the floating-point operations of a program."""

import math
from typing import Any

from jaxlib.mlir.dialects import stablehlo

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.op_kinds import CONTRACTIONS
from alpa_cfp.spmd.module.hlo_module import HloModule


def hlo_module_count_flop_dot_conv_only(module: HloModule) -> float:
    """Floating-point operations of the dots and convolutions of the global program, two for each multiply-add.

    As in the fork's function of this name; ops in loops count once.
    """
    return flop_of_program(module.bytecode)


def flop_of_program(bytecode: bytes) -> float:
    """The same for a program's bytecode; that of a partitioned program gives what one device does."""
    with mlir.context():
        parsed = mlir.parse(bytecode)
        return flop_of_block(mlir.entry_block(mlir.main_function(parsed)))


def flop_of_block(block: Any) -> float:
    """The same for the ops of a block, and those inside them."""
    return float(sum(flop_of_op(op) for op in mlir.walk(block) if op.name in CONTRACTIONS))


def flop_of_op(op: mlir.Operation) -> int:
    """The same for one op; 0 for one that is no contraction."""
    if op.name == "stablehlo.dot_general":
        numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        left = mlir.tensor_shape(op.operands[0])
        contracted = math.prod(left[dim] for dim in numbers.lhs_contracting_dimensions)
        return 2 * math.prod(mlir.tensor_shape(op.results[0])) * contracted
    if op.name == "stablehlo.convolution":
        numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
        kernel = mlir.tensor_shape(op.operands[1])
        # The kernel's input features are already those of one group; the output is summed over kernel places.
        window = math.prod(kernel[dim] for dim in numbers.kernel_spatial_dimensions)
        inputs = kernel[numbers.kernel_input_feature_dimension]
        return 2 * math.prod(mlir.tensor_shape(op.results[0])) * window * inputs
    return 0
