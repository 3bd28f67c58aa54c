"""Approximately largest and least numbers are exact ones on CPUs, split by samples, and the same as JAX's."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.extraction.extractor import Extractor
from alpa_cfp.spmd.ir import mlir
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


def test_a_call_that_stays_has_the_function_that_it_names_in_each_part_of_the_program() -> None:
    """Of all approximately largest numbers of each part; the compiler ends the process where that is missing."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return (lax.approx_max_k(x @ w, 3, aggregate_to_topk=False)[0] ** 2).mean()

    case = Case(jax.grad(loss), (np.eye(16, dtype=np.float32), np.ones((8, 16), np.float32)))
    program = AnalysedProgram(case.module())
    extractor = Extractor(program.module, program.blocks)
    parts = [extractor.extract(each.spec).module for each in program.subprograms.subprograms]
    for module in (case.module(), *parts):
        with mlir.context():
            parsed = mlir.parse(module.bytecode)
            known = mlir.functions(parsed)
            named = {name for op in mlir.inner_operations(known["main"]) for name in mlir.called(op)}
        assert named
        assert set(known) == {"main", *named}


def test_a_call_that_stays_gives_what_jax_gives() -> None:
    case = Case(lambda x: lax.approx_max_k(x, 3, aggregate_to_topk=False), (np.eye(8, 16, dtype=np.float32),))
    module = case.module()
    annotate(module, MESH_2X4, [split(MESH_2X4, "", "")])
    assert_partitioned_right(module, case.arguments, case.expected())
