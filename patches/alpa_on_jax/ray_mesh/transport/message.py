"""An array as bytes: a short header, then the array's own memory.

Takes arrays and gives back buffers to send, and the reverse. Invariant: bytes are never converted or copied where the
array is contiguous, and dtypes go by name, which the dtypes of ml_dtypes (bfloat16, float8) have too.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from alpa_on_jax.ray_mesh.transport.errors import ArrayTypeError

_FIXED = struct.Struct("<4sBBHIQ")  # magic, kind, dims, then bytes: of the dtype's name, of the tag, of the array
FIXED_BYTES = _FIXED.size
_MAGIC = b"tile"
_ARRAY, _GOODBYE = 1, 2
_KINDS = "biufc"
ALIGNMENT_BYTES = 64  # What XLA's CPU client asks for before it takes a numpy array without a copy.

GOODBYE = _FIXED.pack(_MAGIC, _GOODBYE, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Header:
    """What comes before an array's bytes."""

    tag: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Fixed:
    """The first bytes of a header: how long the rest is, or that there will be no more."""

    goodbye: bool
    dims: int
    dtype_bytes: int
    tag_bytes: int
    array_bytes: int

    @property
    def rest_bytes(self) -> int:
        """The bytes of the header that follow."""
        return 8 * self.dims + self.dtype_bytes + self.tag_bytes


def encode(tag: str, array: Any) -> tuple[bytes, memoryview]:
    """The header of an array and its bytes: the array's own memory if it is contiguous.

    Raises:
        ArrayTypeError: Of a dtype that cannot be sent.
    """
    array = np.asarray(array)
    dtype = native(array.dtype)
    data = np.ascontiguousarray(array, dtype)
    name, label = dtype.name.encode(), tag.encode()
    fixed = _FIXED.pack(_MAGIC, _ARRAY, array.ndim, len(name), len(label), data.nbytes)
    return fixed + struct.pack(f"<{array.ndim}Q", *array.shape) + name + label, byte_view(data)


def decode_fixed(data: memoryview) -> Fixed:
    """Read the first `FIXED_BYTES` bytes.

    Raises:
        ValueError: They are no header.
    """
    magic, kind, dims, dtype_bytes, tag_bytes, array_bytes = _FIXED.unpack(data)
    if magic != _MAGIC or kind not in (_ARRAY, _GOODBYE):
        raise ValueError("what arrived is no header of an array")
    return Fixed(kind == _GOODBYE, dims, dtype_bytes, tag_bytes, array_bytes)


def decode_rest(fixed: Fixed, data: memoryview) -> Header:
    """Read the rest of a header."""
    shape = struct.unpack_from(f"<{fixed.dims}Q", data)
    names = bytes(data[8 * fixed.dims :])
    return Header(names[fixed.dtype_bytes :].decode(), names[: fixed.dtype_bytes].decode(), shape)


def header(tag: str, shape: Sequence[int], dtype: DTypeLike) -> Header:
    """The header of the array that is asked for.

    Raises:
        ArrayTypeError: Of a dtype that cannot be sent.
    """
    return Header(tag, native(np.dtype(dtype)).name, tuple(int(size) for size in shape))


def native(dtype: np.dtype) -> np.dtype:
    """The dtype in this machine's byte order, if it is one that can be sent.

    Raises:
        ArrayTypeError: It is not.
    """
    # The dtypes of ml_dtypes are of kind V, as are raw bytes and records, whose type is np.void.
    if dtype.kind not in _KINDS and (dtype.kind != "V" or issubclass(dtype.type, np.void)):
        raise ArrayTypeError(str(dtype))
    return dtype.newbyteorder("=") if dtype.kind in _KINDS else dtype


def empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """A new array, aligned so that JAX on CPU need not copy it."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + size].view(dtype).reshape(tuple(shape))


def byte_view(array: np.ndarray) -> memoryview:
    """The memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data
