"""Small StableHLO ops, built at the current insertion point."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Value


def constant(array: np.ndarray) -> Value:
    """A constant at the current insertion point; a uniform one is written as a splat.

    Complex numbers are made of two real constants, as `complex_constants` says why.
    """
    if array.dtype.kind == "c":
        parts = [constant(np.array(part)) for part in (np.real(array), np.imag(array))]
        result = tensor_type_of(list(array.shape), element_name(array.dtype))
        return mlir.create("stablehlo.complex", [result], parts).results[0]
    mlir_type = tensor_type_of(list(array.shape), element_name(array.dtype))
    if array.size and (array == array.flat[0]).all():
        value = np.array(array.flat[0], array.dtype)
        literal = _literal(value)
        attribute = ir.Attribute.parse(f"dense<{literal}> : {mlir_type}")
    else:
        attribute = mlir.dense(array)
    return mlir.create("stablehlo.constant", [mlir_type], [], {"value": attribute}).results[0]


def binary(name: str, left: Value, right: Value, element_type: Any = None) -> Value:
    """`stablehlo.<name>` of two values of one type, converted to `element_type` where that is given."""
    result = mlir.create(f"stablehlo.{name}", [left.type], [left, right]).results[0]
    if element_type is None or str(element_type) == str(mlir.tensor_type(result).element_type):
        return result
    converted = ir.RankedTensorType.get(mlir.tensor_shape(result), element_type)
    return mlir.create("stablehlo.convert", [converted], [result]).results[0]


def compare(left: Value, right: Value, direction: str) -> Value:
    """An i1 tensor: `left <direction> right`, with direction "EQ", "LT", "GE"."""
    result = tensor_type_of(list(mlir.tensor_shape(left)), "i1")
    attribute = ir.Attribute.parse(f"#stablehlo<comparison_direction {direction}>")
    return mlir.create("stablehlo.compare", [result], [left, right], {"comparison_direction": attribute}).results[0]


def broadcast(value: Value, shape: Sequence[int], dims: Sequence[int] = ()) -> Value:
    """`value` broadcast to `shape`, its dims becoming `dims`."""
    result = ir.RankedTensorType.get(list(shape), mlir.tensor_type(value).element_type)
    attributes = {"broadcast_dimensions": ir.DenseI64ArrayAttr.get(list(dims))}
    return mlir.create("stablehlo.broadcast_in_dim", [result], [value], attributes).results[0]


def element_name(dtype: np.dtype) -> str:
    """The MLIR name of a numpy dtype, such as "f32"."""
    return _ELEMENT_NAMES.get(dtype.name) or "f" + dtype.name.removeprefix("float").replace("_", "").upper()


_ELEMENT_NAMES = {
    "float32": "f32",
    "float64": "f64",
    "float16": "f16",
    "bfloat16": "bf16",
    "bool": "i1",
    "complex64": "complex<f32>",
    "complex128": "complex<f64>",
    **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"ui{bits}" for bits in (8, 16, 32, 64)},
}


def tensor_type_of(shape: Sequence[int], element_type: str) -> Any:
    """The ranked tensor type of `shape` and an element type given by its MLIR name, such as "f32"."""
    return ir.RankedTensorType.get(list(shape), ir.Type.parse(element_type))


def _literal(value: np.ndarray) -> str:
    if value.dtype == np.bool_:
        return "true" if value else "false"
    if np.issubdtype(value.dtype, np.complexfloating):
        number = complex(value)
        return f"({_decimal(number.real)}, {_decimal(number.imag)})"
    if np.issubdtype(value.dtype, np.integer):
        return str(int(value))
    if not np.isfinite(value):
        return f"0x{int(value.view(f'u{value.dtype.itemsize}')):0{2 * value.dtype.itemsize}X}"
    return _decimal(float(value))


def _decimal(value: float) -> str:
    """As many digits as float64, and so every narrower type, needs."""
    return f"{value:.17e}"
