"""Decides whether a loop contains entries of blocks, so that it is worth unrolling.

Takes jaxprs. The criteria are those of `analysis.contractions` and `analysis.gradients`, as far as a program shows them
before it is lowered: a contraction counts if its iteration volume is at least `MAJOR_SHARE` of the largest one in the
program; a lookup of rows in a table, or its gradient, always counts. Invariant: nothing counts inside a `while` of
unknown length or a branch of a condition.
"""

import math
from typing import Any

from jax.extend import core

from alpa_cfp.analysis.gradients import MAJOR_SHARE
from alpa_cfp.jit.jaxprs import SCAN, all_equations, called


def least_volume(jaxpr: Any) -> float:
    """Returns the least iteration volume of a contraction that is planned."""
    return MAJOR_SHARE * max(map(volume, all_equations(jaxpr)), default=0)


def is_plannable(jaxpr: Any, least: float) -> bool:
    """Whether `jaxpr` or one of its inner loops contains an entry of a block.

    Args:
        jaxpr: A part of a program.
        least: The `least_volume` of the whole program.
    """
    return any(
        0 < volume(eqn) >= least
        or _looks_up_rows(eqn)
        or (_is_inlined(eqn) and any(is_plannable(inner, least) for inner in core.jaxprs_in_params(eqn.params)))
        for eqn in jaxpr.eqns
    )


def _is_inlined(eqn: Any) -> bool:
    return eqn.primitive.name == SCAN or called(eqn) is not None


def volume(eqn: Any) -> int:
    """Returns the number of multiplications of a contraction; 0 for other equations."""
    shapes = [atom.aval.shape for atom in eqn.invars[:2]]
    match eqn.primitive.name:
        case "dot_general":
            (_, contracting), (_, batch) = eqn.params["dimension_numbers"]
            right = (size for dim, size in enumerate(shapes[1]) if dim not in (*contracting, *batch))
            return math.prod(shapes[0]) * math.prod(right)
        case "conv_general_dilated":
            outputs = shapes[1][eqn.params["dimension_numbers"].rhs_spec[0]]
            return math.prod(eqn.outvars[0].aval.shape) * math.prod(shapes[1]) // max(outputs, 1)
        case "ragged_dot" | "ragged_dot_general":
            return math.prod(eqn.outvars[0].aval.shape) * shapes[0][-1]
        case _:
            return 0


def _looks_up_rows(eqn: Any) -> bool:
    """Whether an equation gathers several rows of a table, or adds to several rows of one."""
    match eqn.primitive.name:
        case "gather":
            row = eqn.params["dimension_numbers"].offset_dims
            rows, result = eqn.invars[1].aval.shape[:-1], eqn.outvars[0].aval.shape
        case "scatter-add":
            row = eqn.params["dimension_numbers"].update_window_dims
            rows, result = eqn.invars[1].aval.shape[:-1], eqn.invars[2].aval.shape
        case _:
            return False
    return math.prod(rows) > 1 and math.prod(result[dim] for dim in row) > 1
