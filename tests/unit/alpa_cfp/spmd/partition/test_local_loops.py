"""Loops: each device makes its part where iterations at most sum along what is split, and the rest is refused."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from alpa_cfp.spmd.module.partitioned import PartitionedProgram
from alpa_cfp.spmd.shardings.sharding import ArraySharding
from unit.alpa_cfp.spmd.helpers import (
    MESH_2X4,
    Case,
    annotate,
    assert_partitioned_right,
    split,
)
from unit.alpa_cfp.spmd.partition.op_cases import LOOP, LOOPS, normal


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


def test_a_recurrence_whose_state_is_split_communicates_once_a_step():
    whole = split(MESH_2X4, "", "")
    module = annotate(STEPS.module(), MESH_2X4, [whole, split(MESH_2X4, "", "y")], [whole])
    program = assert_partitioned_right(module, STEPS.arguments, STEPS.expected())
    assert program.partitioner == "shardy"
    # There are three steps: the state is gathered in each, or what it is multiplied with is summed.
    assert max(Counter(each.kind for each in program.collectives).values()) == 3


def test_a_loop_that_moves_elements_along_a_split_dim_is_left_to_xla():
    case = Case(lambda a: lax.fori_loop(0, 3, lambda i, c: c[:, ::-1] * 0.5, a), (normal(16, 8),))
    module = annotate(case.module(), MESH_2X4, [split(MESH_2X4, "", "y")])
    program = assert_partitioned_right(module, case.arguments, case.expected(), refused=LOOP)
    assert program.partitioner == "xla"


def partitioned(case: Case, inputs: list[ArraySharding]) -> PartitionedProgram:
    """The program of a case whose results are replicated; equal to the serial run."""
    outputs = [split(MESH_2X4, *[""] * np.ndim(value)) for value in case.expected()]
    program = assert_partitioned_right(
        annotate(case.module(), MESH_2X4, inputs, outputs), case.arguments, case.expected()
    )
    assert program.partitioner == "shardy"
    return program


def test_gradients_that_iterations_add_up_are_summed_over_devices_once_behind_the_loop():
    case = LOOPS["gradients that are added up"]
    program = partitioned(case, [split(MESH_2X4, "xy", ""), split(MESH_2X4, "", "")])
    assert Counter((each.kind, each.group_size) for each in program.collectives) == {("all-reduce", 8): 2}


def test_gradients_that_iterations_stack_are_summed_over_devices_once_behind_the_loop():
    case = LOOPS["gradients that are stacked"]
    whole = split(MESH_2X4, "", "", "")
    program = partitioned(case, [split(MESH_2X4, "xy", ""), whole, whole])
    assert sorted(each.size_bytes for each in program.collectives) == [4 * 3 * 16 * 32] * 2


def test_what_each_iteration_needs_whole_is_summed_in_each_iteration():
    # As in a tensor-parallel layer: columns of the first weights, rows of the second, and a sum in each pass.
    case = LOOPS["gradients that are stacked"]
    shardings = [split(MESH_2X4, "", ""), split(MESH_2X4, "", "", "y"), split(MESH_2X4, "", "y", "")]
    module = annotate(case.module(), MESH_2X4, shardings, shardings[1:])
    program = assert_partitioned_right(module, case.arguments, case.expected())
    assert program.partitioner == "shardy"
    # Of three layers, forward and backward.
    assert Counter((each.kind, each.group_size) for each in program.collectives) == {("all-reduce", 4): 2 * 3}


def test_what_a_state_is_multiplied_with_is_summed_in_each_iteration():
    case = LOOPS["a product with a sum in each step"]
    program = partitioned(case, [split(MESH_2X4, "", ""), split(MESH_2X4, "xy", "")])
    assert Counter(each.kind for each in program.collectives) == {"all-reduce": 3}


def test_a_sum_that_some_steps_leave_out_is_made_once_too():
    program = partitioned(LOOPS["a sum that some steps leave out"], [split(MESH_2X4, "xy", "")] * 2)
    assert [each.kind for each in program.collectives] == ["all-reduce"]


def test_a_first_value_counts_once_however_many_devices_sum():
    case = LOOPS["a decaying sum that begins with a value"]
    program = partitioned(case, [split(MESH_2X4, "xy", "")] * 2 + [split(MESH_2X4, "", "")])
    assert [each.kind for each in program.collectives] == ["all-reduce"]


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
