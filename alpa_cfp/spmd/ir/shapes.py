"""Shapes and program signatures, with the method names of `xla_client.Shape` that alpa calls."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Shape:
    """An array's shape and dtype."""

    dims: tuple[int, ...]
    dtype: np.dtype

    def dimensions(self) -> tuple[int, ...]:
        return self.dims

    def numpy_dtype(self) -> np.dtype:
        return self.dtype

    def is_tuple(self) -> bool:
        return False

    @property
    def size_bytes(self) -> int:
        return int(np.prod(self.dims, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class TupleShape:
    """The shape of a program's result: always a tuple, as in the HLO that alpa was written for."""

    elements: tuple[Shape, ...]

    def tuple_shapes(self) -> tuple[Shape, ...]:
        return self.elements

    def is_tuple(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class ProgramShape:
    """The shapes of a program's parameters and results."""

    parameters: tuple[Shape, ...]
    results: tuple[Shape, ...]

    def parameter_shapes(self) -> tuple[Shape, ...]:
        return self.parameters

    def result_shape(self) -> TupleShape:
        return TupleShape(self.results)
