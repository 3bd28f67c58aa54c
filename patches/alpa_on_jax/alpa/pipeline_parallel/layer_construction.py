"""Replacements in `alpa.pipeline_parallel.layer_construction`: results of a loss function that are constants.

Alpa gives such a result an equation of its own and makes the zero that it adds from the type of the literal's value.
JAX's literals hold types of its own today, which cannot be made from a 0; so alpa is shown literals of numpy arrays.
"""

from types import ModuleType
from typing import Any

import numpy as np
from jax._src import core
from jax.extend.core import ClosedJaxpr

from alpa_on_jax.replacing import replace


def apply(module: ModuleType) -> None:
    """Wrap `add_pipeline_marks_for_sliced_eqns`."""
    original = module.add_pipeline_marks_for_sliced_eqns

    def add_pipeline_marks_for_sliced_eqns(closed_jaxpr: ClosedJaxpr, sliced_eqns: Any) -> ClosedJaxpr:
        """Adds pipeline marks for sliced equations."""
        outvars = [
            core.Literal(np.asarray(v.val, getattr(v.aval, "dtype", None)), v.aval)
            if isinstance(v, core.Literal)
            else v
            for v in closed_jaxpr.jaxpr.outvars
        ]
        return original(module.clone_jaxpr(closed_jaxpr, outvars=outvars), sliced_eqns)

    replace(module, add_pipeline_marks_for_sliced_eqns)
