"""Loops: each device makes its part where no iteration works along what is split, and the rest is refused."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unit.alpa_cfp.spmd.helpers import (
    MESH_2X4,
    Case,
    annotate,
    assert_partitioned_right,
    split,
)
from unit.alpa_cfp.spmd.partition.op_cases import LOOP, normal


def test_random_numbers_are_drawn_in_parts_without_communication():
    case = Case(lambda key: jax.random.uniform(key, (16, 64)), (np.array([0, 7], np.uint32),))
    module = annotate(case.module(), MESH_2X4, [split(MESH_2X4, "")], [split(MESH_2X4, "x", "y")])
    program = assert_partitioned_right(module, case.arguments, case.expected())
    assert program.collectives == ()


def _steps(a: jax.Array, w: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c @ w), a)


STEPS = Case(_steps, (normal(16, 8), normal(8, 8)))


def test_samples_go_through_a_loop_of_products_each_on_its_device():
    module = annotate(STEPS.module(), MESH_2X4, [split(MESH_2X4, "xy", ""), split(MESH_2X4, "", "")])
    program = assert_partitioned_right(module, STEPS.arguments, STEPS.expected())
    assert (program.partitioner, program.collectives) == ("shardy", ())


def test_a_loop_that_sums_over_a_split_dim_is_left_to_xla():
    module = annotate(STEPS.module(), MESH_2X4, [split(MESH_2X4, "", "y"), split(MESH_2X4, "", "y")])
    program = assert_partitioned_right(module, STEPS.arguments, STEPS.expected(), refused=LOOP)
    assert program.partitioner == "xla"


def test_no_axis_splits_two_dims_of_an_array_inside_of_a_loop():
    # Each of the two carried arrays is split along one dim by the same axis; their product would have both.
    def outer(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        def body(i: jax.Array, carried: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            a, b = carried
            table = a[:, None] * b[None, :] + i
            return a + table[:, 0], b + table[0]

        return lax.fori_loop(0, 3, body, (a, b))

    case = Case(outer, (normal(8), normal(16)))
    shardings = [split(MESH_2X4, "y"), split(MESH_2X4, "y")]
    module = annotate(case.module(), MESH_2X4, shardings, shardings)
    assert_partitioned_right(module, case.arguments, case.expected(), refused=LOOP)
