"""Small StableHLO ops, built at the current insertion point, and element types as numpy dtypes."""

import functools
from collections.abc import Sequence
from typing import Any

import jax.interpreters.mlir as lowering
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Value

_DTYPES = (
    *(np.bool_, np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.complex64, np.complex128),
    *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
    *(ml_dtypes.int2, ml_dtypes.int4, ml_dtypes.uint2, ml_dtypes.uint4),
    *(ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3b11fnuz),
    *(ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz),
)


def numpy_dtype(element_type: Any) -> np.dtype:
    """The numpy dtype of an MLIR element type.

    Raises:
        ValueError: numpy (with ml_dtypes) has no such type.
    """
    known = mlir.known_here(numpy_dtype)
    if (found := known.get(element_type)) is not None:
        return found
    try:
        return known.setdefault(element_type, _dtypes_by_name()[str(element_type)])
    except KeyError:
        raise ValueError(f"element type {element_type} has no numpy dtype") from None


@functools.cache
def _dtypes_by_name() -> dict[str, np.dtype]:
    with mlir.context():
        return {str(element_type(jnp.dtype(dtype))): jnp.dtype(dtype) for dtype in _DTYPES}


def element_type(dtype: np.dtype) -> ir.Type:
    """The MLIR element type of a numpy dtype."""
    return lowering.dtype_to_ir_type(dtype)


def dtype_of(value: Value) -> np.dtype:
    """The numpy dtype of a tensor value."""
    return numpy_dtype(mlir.tensor_type(value).element_type)


def typed(like: Value, shape: Sequence[int]) -> Any:
    """The tensor type of `shape` with the element type of `like`."""
    return ir.RankedTensorType.get(list(shape), mlir.tensor_type(like).element_type)


def constant(array: np.ndarray) -> Value:
    """A constant. Complex numbers are made of two real constants; `lowered_form` has the reason."""
    if array.dtype.kind == "c":
        return stablehlo.complex(*(constant(np.array(part)) for part in (np.real(array), np.imag(array))))
    return lowering.ir_constant(array)


def index(number: int) -> Value:
    """An i32 scalar."""
    return constant(np.array(number, np.int32))


def converted(value: Value, element: Any) -> Value:
    """`value` with another element type: `value` itself where it has that type already."""
    if element == mlir.tensor_type(value).element_type:
        return value
    return stablehlo.convert(ir.RankedTensorType.get(mlir.tensor_shape(value), element), value)


def compare(left: Value, right: Value, direction: str) -> Value:
    """An i1 tensor: `left <direction> right`, with direction "EQ", "LT", "GE"."""
    return stablehlo.compare(left, right, stablehlo.ComparisonDirectionAttr.get(direction))


def broadcast(value: Value, shape: Sequence[int], dims: Sequence[int] = ()) -> Value:
    """`value` broadcast to `shape`; its dim i becomes dim `dims[i]`."""
    return stablehlo.broadcast_in_dim(typed(value, shape), value, list(dims))


def reshaped(value: Value, shape: Sequence[int]) -> Value:
    """`value` in another shape of as many elements: `value` itself where it has that shape already."""
    return value if tuple(shape) == mlir.tensor_shape(value) else stablehlo.reshape(typed(value, shape), value)


def transposed(value: Value, permutation: Sequence[int]) -> Value:
    """`value` with result dim i being its dim `permutation[i]`: `value` itself where that changes nothing."""
    if list(permutation) == list(range(len(permutation))):
        return value
    return stablehlo.transpose(value, list(permutation))
