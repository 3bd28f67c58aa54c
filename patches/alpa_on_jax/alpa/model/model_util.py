"""Replacements in `alpa.model.model_util`: what counts as a tensor in a model's output."""

from types import ModuleType
from typing import Any

import jax
import numpy as np

from alpa_on_jax.replacing import replace


def apply(module: ModuleType) -> None:
    """Replace `is_tensor`."""
    replace(module, is_tensor)


def is_tensor(x: Any) -> bool:
    """Whether `x` is an array: traced, on one device or on many, or of numpy."""
    return isinstance(x, (jax.Array, np.ndarray))
