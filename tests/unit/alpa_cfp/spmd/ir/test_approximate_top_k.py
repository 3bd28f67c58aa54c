"""Approximately largest and least numbers are exact ones on CPUs, split by samples, and the same as JAX's."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

from unit.alpa_cfp.spmd.helpers import MESH_2X4, Case, annotate, assert_partitioned_right, split

CASES: dict[str, Callable[[jax.Array], Any]] = {
    "largest": lambda x: lax.approx_max_k(x, 3),
    "least": lambda x: lax.approx_min_k(x, 3),
    "largest of columns": lambda x: lax.approx_max_k(x.T, 3, reduction_dimension=0),
    "gradient": jax.grad(lambda x: (lax.approx_max_k(x, 3)[0] ** 2).sum()),
}


@pytest.mark.parametrize("name", CASES)
def test_they_are_those_of_jax_and_are_split_by_samples_without_communication(name: str) -> None:
    case = Case(CASES[name], (np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32),))
    module = case.module()
    annotate(module, MESH_2X4, [split(MESH_2X4, "xy", "")])
    program = assert_partitioned_right(module, case.arguments, case.expected())
    assert program.collectives == ()
    assert b"ApproxTopK" not in program.bytecode
