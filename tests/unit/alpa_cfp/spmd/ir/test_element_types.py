"""MLIR element types, numpy dtypes, and the constants that are written in them."""

import ml_dtypes
import numpy as np
import pytest
from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.builders import constant, element_type, numpy_dtype

_NAMES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32")
_WIDE_NAMES = ("float64", "complex64", "complex128")
_NARROW = (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
DTYPES = [np.dtype(name) for name in (*_NAMES, *_WIDE_NAMES, *_NARROW)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_dtypes_element_type_has_that_dtype(dtype):
    with mlir.context():
        assert numpy_dtype(element_type(dtype)) == dtype


def test_an_element_type_without_a_dtype_is_refused():
    with mlir.context(), pytest.raises(ValueError, match="index has no numpy dtype"):
        numpy_dtype(ir.IndexType.get())


@pytest.mark.parametrize(
    "value",
    [np.float32(0.1), np.float32(1 / 3), np.float64(1 / 3), np.float32(np.inf), np.float16(0.1)],
)
def test_a_uniform_constant_keeps_every_digit(value):
    with mlir.context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            op = mlir.defining_op(constant(np.full((2, 3), value)))
            exact = mlir.defining_op(constant(np.array([value, value * 0], value.dtype)))
        assert op is not None
        assert exact is not None
        splat = ir.DenseElementsAttr(op.attributes["value"]).get_splat_value()
        first = str(ir.DenseElementsAttr(exact.attributes["value"])).split("[")[1].split(", ")[0]
        assert str(splat).split(" :")[0] == first


@pytest.mark.parametrize(
    ("dtype", "number"), [(np.int8, -3), (np.uint32, 2**32 - 1), (np.bool_, True), (np.int64, -(2**40))]
)
def test_a_uniform_constant_of_integers_has_that_number(dtype, number):
    with mlir.context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            op = mlir.defining_op(constant(np.full((2,), number, dtype)))
        assert op is not None
        np.testing.assert_array_equal(
            np.array(ir.DenseElementsAttr(op.attributes["value"])), np.full((2,), number, dtype)
        )
