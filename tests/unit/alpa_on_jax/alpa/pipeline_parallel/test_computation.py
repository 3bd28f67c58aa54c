"""In which order a stage computes its results. Equations are stand-ins with operands and results that are letters."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from alpa.pipeline_parallel.computation import JaxPipelineComputation
from jax._src import core


def order(*equations: tuple[Any, str]) -> str:
    """The results of a stage, of which each equation has operands and results, in the order that it computes them."""
    eqns = [SimpleNamespace(invars=list(operands), outvars=list(results)) for operands, results in equations]
    return "".join(JaxPipelineComputation.outvars_def_order(SimpleNamespace(eqns=eqns)))


def test_results_come_in_the_order_in_which_they_are_computed() -> None:
    assert order(("X", "x"), ("x", "a"), ("a", "b"), ("bax", "BAX")) == "XAB"


def test_a_value_that_is_two_results_of_a_stage_counts_as_both() -> None:
    assert order(("X", "x"), ("x", "a"), ("a", "b"), ("baa", "BAC")) == "ACB"


def test_a_constant_among_the_results_is_there_from_the_start() -> None:
    zero = core.Literal(np.float32(0), core.ShapedArray((), np.float32))
    assert order(("X", "x"), ("x", "a"), (["a", zero], "AZ")) == "ZA"
