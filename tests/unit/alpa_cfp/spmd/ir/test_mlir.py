"""Passes over modules: what is not valid is refused, before and after them."""

import pytest
from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir

VALID = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"


def test_a_module_that_is_not_valid_is_refused() -> None:
    with mlir.context(), ir.Location.unknown():
        module = mlir.parse(VALID)
        mlir.run_passes(module, "cse")
        narrow = ir.RankedTensorType.get([2], ir.F32Type.get())
        mlir.entry_block(mlir.main_function(module)).arguments[0].set_type(narrow)
        with pytest.raises(ir.MLIRError):
            mlir.run_passes(module, "cse")
