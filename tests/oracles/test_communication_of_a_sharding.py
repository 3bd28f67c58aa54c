"""The communication that a sharding implies, as Shardy's and Alpa's own test suites expect it."""

from collections import Counter

import jax
import jax.numpy as jnp
import pytest

from alpa_cfp.spmd.module.hlo_module import HloModule, set_hlo_module_input_shardings, set_hlo_module_output_shardings
from alpa_cfp.spmd.partition import PartitionedProgram, partition
from alpa_cfp.spmd.propagation import propagate
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh

MESH = LogicalMesh((2, 4))
X, Y = MESH.axes


def partitioned_dot(left: tuple, right: tuple, result: tuple) -> PartitionedProgram:
    """One device's program for f32[32,64] @ f32[64,128] with these dims split."""
    shapes = [jax.ShapeDtypeStruct((32, 64), jnp.float32), jax.ShapeDtypeStruct((64, 128), jnp.float32)]
    lowered = jax.jit(lambda a, b: a @ b).trace(*shapes).lower(lowering_platforms=("cpu",))
    module = HloModule.from_stablehlo("dot", str(lowered.compiler_ir("stablehlo")))
    set_hlo_module_input_shardings(module, [ArraySharding(MESH, dims).to_proto() for dims in (left, right)])
    set_hlo_module_output_shardings(module, [ArraySharding(MESH, result).to_proto()])
    propagate(module, MESH, to_outputs=True)
    return partition(module)


@pytest.mark.parametrize(
    ("left", "right", "result", "expected"),
    [
        pytest.param(((), ()), ((), (Y,)), ((), (Y,)), {}, id="column_parallel_needs_none"),
        pytest.param(((X,), ()), ((), ()), ((X,), ()), {}, id="data_parallel_needs_none"),
        pytest.param(((X,), ()), ((), (Y,)), ((X,), (Y,)), {}, id="data_and_column_parallel_needs_none"),
        pytest.param(((), (Y,)), ((Y,), ()), ((), ()), {"all-reduce": 1}, id="a_split_contracting_dim_needs_one_sum"),
        pytest.param(((), (Y,)), ((), ()), ((), ()), {"all-reduce": 1}, id="one_split_operand_is_enough_for_a_sum"),
        pytest.param(((), ()), ((), (Y,)), ((), ()), {"all-gather": 1}, id="a_result_wanted_whole_is_gathered"),
    ],
)
def test_a_dot_has_the_communication_that_its_sharding_implies(
    left: tuple, right: tuple, result: tuple, expected: dict[str, int]
) -> None:
    program = partitioned_dot(left, right, result)
    assert program.partitioner == "shardy"
    assert Counter(collective.kind for collective in program.collectives) == expected


def test_the_sum_of_a_split_dot_has_the_size_of_its_result() -> None:
    (collective,) = partitioned_dot(((), (Y,)), ((Y,), ()), ((), ())).collectives
    assert collective.size_bytes == 32 * 128 * 4
    assert collective.group_size == 4
