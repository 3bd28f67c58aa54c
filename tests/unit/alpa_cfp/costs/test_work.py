"""The work of one device's program: what is in a loop counts as often as the loop goes round."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from alpa_cfp.costs.work import read_local, work_of
from unit.alpa_cfp.spmd.helpers import MESH_2X4, Case, annotate, assert_partitioned_right, split

STEPS = 5
CASE = Case(
    lambda x, weights: lax.fori_loop(0, STEPS, lambda _, c: jnp.tanh(c @ weights), x),
    (np.ones((16, 8), np.float32), np.eye(8, dtype=np.float32)),
)


def test_products_and_what_they_read_count_in_each_iteration_of_a_loop():
    module = annotate(CASE.module(), MESH_2X4, [split(MESH_2X4, "xy", ""), split(MESH_2X4, "", "")])
    program = assert_partitioned_right(module, CASE.arguments, CASE.expected())
    local = read_local(program)
    assert work_of(program, local).flops == STEPS * 2 * (16 // 8) * 8 * 8
    assert local.read_bytes == STEPS * 4 * (16 // 8 * 8 + 8 * 8)
