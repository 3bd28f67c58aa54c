"""How often the ops of a program run."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.trip_counts import runs_of
from unit.alpa_cfp.spmd.helpers import lower

SQUARE = np.eye(8, dtype=np.float32)


def runs_of_products(function: Callable[..., Any]) -> list[int]:
    """How often each matrix product of a function of a matrix runs."""
    with mlir.context():
        module = mlir.parse(lower(function, (SQUARE,)).bytecode)
        block = mlir.entry_block(mlir.main_function(module))
        return [runs for op, runs in runs_of(block) if op.name == "stablehlo.dot_general"]


@pytest.mark.parametrize(
    ("function", "runs"),
    [
        (lambda x: x @ x, [1]),
        (lambda x: x @ lax.fori_loop(0, 5, lambda i, c: c @ x, x), [5, 1]),
        (lambda x: lax.fori_loop(0, 5, lambda i, c: lax.fori_loop(2, 5, lambda j, d: d @ x, c) @ x, x), [15, 5]),
        (lambda x: lax.while_loop(lambda c: jnp.sum(c) < 9, lambda c: c @ x, x), [1]),
    ],
    ids=["outside", "in a loop", "in two loops", "in a loop of unknown length"],
)
def test_an_op_runs_as_often_as_the_loops_around_it_go_round(function, runs):
    assert runs_of_products(function) == runs
