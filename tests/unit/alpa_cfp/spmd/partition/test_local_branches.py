"""Branches: each device computes its part of the branch that all take, and communication in one is refused."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from unit.alpa_cfp.spmd.helpers import (
    MESH_2X4,
    MESHES,
    Case,
    annotate,
    assert_partitioned_right,
    mesh_id,
    seed_of,
    split,
)
from unit.alpa_cfp.spmd.partition.op_cases import BRANCH, WORKED, normal

X, Y = normal(16, 8), normal(16, 8)


def updated(choice: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Arrays that one branch changes, as an optimizer does that skips steps."""
    return lax.cond(choice[0] > 0, lambda: (x - 0.1 * jnp.tanh(y) * jnp.float32(3), y * y), lambda: (x, y))


def switched(choice: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """One of three branches, of which one has branches and one a loop."""
    return lax.switch(
        choice[0],
        [
            lambda: x + y,
            lambda: lax.cond(choice[1] > 0, lambda: x * y, lambda: jnp.full((16, 8), 2.0)),
            lambda: lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) + i, x),
        ],
    )


def multiplied(choice: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """A product in each branch."""
    return lax.cond(choice[0] > 0, lambda: x @ y.T, lambda: jnp.tanh(x) @ y.T)


FUNCTIONS: dict[str, Callable[..., object]] = {"updated": updated, "switched": switched, "multiplied": multiplied}


def case_of(name: str, choice: list[int]) -> Case:
    return Case(FUNCTIONS[name], (np.array(choice, np.int32), X, Y), f"{BRANCH}|{WORKED}|a partial sum")


@pytest.mark.parametrize("choice", [[0, 0], [1, 0], [1, 1], [2, 0]])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_branch_is_computed_in_parts_without_communication(name: str, choice: list[int]) -> None:
    case, by_x = case_of(name, choice), split(MESH_2X4, "x", "")
    y = split(MESH_2X4, "", "") if name == "multiplied" else by_x
    module = annotate(case.module(), MESH_2X4, [split(MESH_2X4, ""), by_x, y])
    program = assert_partitioned_right(module, case.arguments, case.expected())
    assert (program.partitioner, program.collectives) == ("shardy", ())


def test_a_sum_in_a_branch_over_what_is_split_is_left_to_xla() -> None:
    case = Case(
        lambda c, x: lax.cond(c[0] > 0, lambda: x.sum(1), lambda: x[:, 0]), (np.array([1], np.int32), X), BRANCH
    )
    module = annotate(case.module(), MESH_2X4, [split(MESH_2X4, ""), split(MESH_2X4, "", "y")])
    program = assert_partitioned_right(module, case.arguments, case.expected(), refused=f"{BRANCH}|{WORKED}")
    assert program.partitioner == "xla"


@pytest.mark.parametrize("mesh", MESHES, ids=mesh_id)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_with_any_shardings_the_devices_compute_what_one_does_or_it_is_refused(name: str, mesh: LogicalMesh) -> None:
    case_of(name, [1, 1]).assert_right_with_any_shardings(mesh, seed_of(f"{name} {mesh.shape}"))


def test_branches_in_which_nothing_is_split_may_have_any_op() -> None:
    def transformed(choice: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return lax.cond(choice[0] > 0, lambda: jnp.fft.fft(x).real, lambda: x), 2 * y

    case, by_x, whole = (
        Case(transformed, (np.array([1], np.int32), X, Y)),
        split(MESH_2X4, "x", ""),
        split(MESH_2X4, "", ""),
    )
    module = annotate(case.module(), MESH_2X4, [split(MESH_2X4, ""), whole, by_x], [whole, by_x])
    assert assert_partitioned_right(module, case.arguments, case.expected()).partitioner == "shardy"
