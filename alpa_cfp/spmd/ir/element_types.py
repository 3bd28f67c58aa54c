"""MLIR element types and numpy dtypes, both ways."""

from typing import Any

import ml_dtypes
import numpy as np

_DTYPES: dict[str, Any] = {
    "i1": np.bool_,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
    "complex<f32>": np.complex64,
    "complex<f64>": np.complex128,
    **{f"i{bits}": np.dtype(f"int{bits}").type for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": np.dtype(f"uint{bits}").type for bits in (8, 16, 32, 64)},
    "i2": ml_dtypes.int2,
    "i4": ml_dtypes.int4,
    "ui2": ml_dtypes.uint2,
    "ui4": ml_dtypes.uint4,
    **{
        "f" + name.removeprefix("float").replace("_", "").upper(): getattr(ml_dtypes, name)
        for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2fnuz")
    },
}

# The names that the same types have in HLO text.
DTYPE_OF_HLO_NAME: dict[str, Any] = {
    "pred": np.bool_,
    "c64": np.complex64,
    "c128": np.complex128,
    **{f"s{bits}": np.dtype(f"int{bits}").type for bits in (8, 16, 32, 64)},
    **{f"u{bits}": np.dtype(f"uint{bits}").type for bits in (8, 16, 32, 64)},
    **{name: dtype for name, dtype in _DTYPES.items() if name in ("f16", "bf16", "f32", "f64")},
}


def numpy_dtype(element_type: Any) -> Any:
    """The numpy scalar type of an MLIR element type.

    Raises:
        ValueError: numpy (with ml_dtypes) has no such type.
    """
    try:
        return _DTYPES[str(element_type)]
    except KeyError:
        raise ValueError(f"element type {element_type} has no numpy dtype") from None
