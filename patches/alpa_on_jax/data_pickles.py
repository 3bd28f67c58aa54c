"""Pickles that hold data alone: a pickle can name any function, which runs when it is read.

Takes a file that alpa's formats have pickled (the description of a saved array, results of stages, by numpy or by
itself); gives what is in it. Invariant: nothing is called but what makes these data: a file that names anything else
ends in an error before that is imported.
"""

import pickle
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as numpy_format

from alpa_on_jax import errors

_NPY = b"\x93NUMPY"
_NAMES = frozenset(
    {
        "_codecs.encode",  # of bytes, by old protocols
        "builtins.slice",
        "__builtin__.slice",
        "numpy.dtype",
        "numpy.ndarray",
        *(
            f"numpy.{core}.{name}"
            for core in ("core", "_core")
            for name in ("multiarray._reconstruct", "multiarray.scalar", "numeric._frombuffer")
        ),
        "alpa.pipeline_parallel.stage_profiling.StageProfileResult",
        "alpa.pipeline_parallel.stage_profiling.ModuleProfileResult",
    }
)


class _Reader(pickle.Unpickler):
    """Finds what may be named, and nothing else."""

    def find_class(self, module: str, name: str, /) -> Any:
        # ml_dtypes has number types, such as bfloat16, and functions of numbers.
        if f"{module}.{name}" in _NAMES or (module == "ml_dtypes" and "." not in name):
            return super().find_class(module, name)
        raise errors.DataFileError(f"{module}.{name}")


def load(file: BinaryIO) -> Any:
    """Read the data pickled into `file`, also by `numpy.save` as an array of objects.

    Raises:
        errors.DataFileError: it names something that none of alpa's formats has.
        pickle.UnpicklingError, EOFError, ValueError: it is damaged.
    """
    start = file.read(len(_NPY))
    file.seek(0)
    if start != _NPY:
        return _Reader(file).load()
    version = numpy_format.read_magic(file)
    read_header = numpy_format.read_array_header_1_0 if version == (1, 0) else numpy_format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if dtype.hasobject:
        array = _Reader(file).load()
        return array.item() if isinstance(array, np.ndarray) and shape == () else array
    file.seek(0)
    return np.load(file, allow_pickle=False)
