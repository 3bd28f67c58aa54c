"""`jax.abstract_arrays`: the types that JAX takes for arrays without conversion."""

import numpy as np
from jax._src.abstract_arrays import numpy_scalar_types
from jax._src.core import ShapedArray

__all__ = ["ShapedArray", "array_types"]

array_types: set[type] = {np.ndarray, *numpy_scalar_types}
