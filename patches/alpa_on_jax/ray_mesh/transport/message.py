"""An array as bytes: two lengths, a header in JSON, then the array's own memory.

Takes arrays and gives back buffers to send, and the reverse. Invariant: bytes are never converted or copied where the
array is contiguous, and dtypes go by name, which the dtypes of ml_dtypes (bfloat16, float8) have too.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from alpa_on_jax.ray_mesh.transport.errors import ArrayTypeError

_LENGTHS = struct.Struct("<4sIQ")  # magic, bytes of the header, bytes of the array
LENGTHS_BYTES = _LENGTHS.size
_MAGIC = b"tile"
_KINDS = "biufc"
ALIGNMENT_BYTES = 64  # XLA's CPU client takes a numpy array that is aligned like this without a copy.

# In the place of the lengths: no array will follow any more. No header is empty.
GOODBYE = _LENGTHS.pack(_MAGIC, 0, 0)


@dataclass(frozen=True, slots=True)
class Header:
    """What comes before an array's bytes."""

    tag: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def encode(tag: str, array: Any) -> tuple[bytes, memoryview]:
    """The lengths and the header of an array, and its bytes: the array's own memory if it is contiguous.

    Raises:
        ArrayTypeError: Of a dtype that cannot be sent.
    """
    array = np.asarray(array)
    dtype = native(array.dtype)
    data = np.ascontiguousarray(array, dtype)
    header = json.dumps([tag, dtype.name, array.shape]).encode()
    return _LENGTHS.pack(_MAGIC, len(header), data.nbytes) + header, data.reshape(-1).view(np.uint8).data


def decode_lengths(data: memoryview) -> tuple[int, int]:
    """Read the first `LENGTHS_BYTES` bytes: the bytes of the header and of the array that follow.

    Raises:
        ValueError: They are no lengths.
    """
    magic, header_bytes, array_bytes = _LENGTHS.unpack(data)
    if magic != _MAGIC:
        raise ValueError("what arrived is no header of an array")
    return header_bytes, array_bytes


def decode_header(data: memoryview) -> Header:
    """Read a header."""
    tag, dtype, shape = json.loads(bytes(data))
    return Header(tag, dtype, tuple(shape))


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


def empty(size_bytes: int) -> np.ndarray:
    """New memory, aligned so that JAX on CPU need not copy it."""
    raw = np.empty(size_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + size_bytes]
