"""What a program that is left to XLA communicates is predicted: what Shardy does not split is computed whole."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import Collective, PartitionedProgram, partition_to_run
from alpa_cfp.spmd.partition.local_ops import HANDLERS
from alpa_cfp.spmd.partition.shardy import partition_with_shardy
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from unit.alpa_cfp.spmd.helpers import annotate, assert_parts_equal, lower, run, split, values_of

MESH = LogicalMesh((8,))
ROWS = split(MESH, "x", "")
X = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)


def fourier(x: jax.Array) -> jax.Array:
    return jnp.abs(jnp.fft.fft(x, axis=1))


def halved_until_small(x: jax.Array) -> jax.Array:
    """A loop whose length depends on values, and whose body reduces over samples."""

    def body(x: jax.Array) -> jax.Array:
        return 0.5 * x + 0.1 * x.mean(0)

    return lax.while_loop(lambda x: jnp.abs(x).max() > 1.0, body, x)


def halved_from_outside(x: jax.Array) -> jax.Array:
    """A branch that uses a value of the function around it."""
    y = x * 2
    return lax.cond(x.sum() > 0, lambda: y * y.mean(0), lambda: y)


@pytest.fixture(autouse=True)
def uncovered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves Fourier transforms to XLA's partitioner."""
    monkeypatch.delitem(HANDLERS, "stablehlo.fft")


WHOLE: dict[str, Callable[[jax.Array], jax.Array]] = {
    "fft": fourier,
    "while": halved_until_small,
    "cond": halved_from_outside,
}


def solved(function: Callable[..., Any], *arguments: np.ndarray, inputs: list[ArraySharding]) -> HloModule:
    module = annotate(lower(function, arguments), MESH, inputs)
    module.solved = True
    return module


def predicted(module: HloModule) -> PartitionedProgram:
    program = partition_to_run(module, predicts=True)
    assert program.partitioner == "xla"
    assert program.prediction is not None
    return program.prediction


@pytest.mark.parametrize("name", WHOLE)
def test_a_program_of_which_ops_are_computed_whole_is_right(name: str) -> None:
    def function(x: jax.Array) -> jax.Array:
        return WHOLE[name](x) + x

    module = solved(function, X, inputs=[ROWS])
    program = partition_with_shardy(module, (), whole_dims=True, whole_ops=True)
    assert_parts_equal(run(module, program, [X]), values_of(function, [X]))


def test_what_is_not_covered_is_gathered_and_each_device_keeps_its_part() -> None:
    assert predicted(solved(lambda x: fourier(x) + x, X, inputs=[ROWS])).collectives == (
        Collective("all-gather", X.nbytes * 2 // 8, 8),  # complex numbers
    )


def test_the_sum_of_a_gradient_is_in_the_prediction() -> None:
    def gradient(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.grad(lambda w: (fourier(x @ w) ** 2).sum())(w)

    module = solved(gradient, X, W, inputs=[ROWS, ArraySharding.replicated(MESH, 2)])
    assert ("all-reduce", W.nbytes, 8) in {
        (each.kind, each.size_bytes, each.group_size) for each in predicted(module).collectives
    }


def test_where_nothing_is_split_nothing_is_predicted_to_be_communicated() -> None:
    assert predicted(solved(fourier, X, inputs=[ArraySharding.replicated(MESH, 2)])).collectives == ()


def test_nothing_is_predicted_where_it_is_not_asked_for() -> None:
    program = partition_to_run(solved(fourier, X, inputs=[ROWS]))
    assert (program.partitioner, program.prediction) == ("xla", None)
    assert program.counted is program
