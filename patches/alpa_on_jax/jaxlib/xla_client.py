"""Completes `jaxlib.xla_client`: alpa reads `ops`, the operators of the XLA builder, while it is imported.

The builder is gone from jaxlib; the functions of alpa that used it are replaced.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np

from alpa_cfp.spmd.ir.shapes import Shape

__all__ = ["ops", "shape_from_pyval"]

ops = SimpleNamespace()


def shape_from_pyval(value: Any) -> Shape:
    """The shape and dtype of an array, or of what stands for one."""
    return Shape(tuple(value.shape), np.dtype(value.dtype))
