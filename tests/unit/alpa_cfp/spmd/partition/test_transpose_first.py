"""What a contraction gives is transposed before it is summed over devices: the order of ops, and their values."""

import numpy as np
import pytest
from jax.lax import optimization_barrier as reshard

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.partition import PartitionedProgram
from alpa_cfp.spmd.shardings.sharding import ArraySharding
from unit.alpa_cfp.spmd.helpers import MESH_2X4, split
from unit.alpa_cfp.spmd.partition.solved_programs import kinds, partitioned

X, W, Z = (np.random.default_rng(5).normal(size=shape).astype(np.float32) for shape in ((8, 16), (16, 24), (8, 8, 24)))
WHOLE = split(MESH_2X4, "", "")
INPUTS = [split(MESH_2X4, "", "xy"), split(MESH_2X4, "xy", "")]
TURN, SCATTER = "stablehlo.transpose", "stablehlo.reduce_scatter"


def turns_and_scatters(program: PartitionedProgram) -> list[str]:
    """The transposes and reduce-scatters of a program, in order."""
    with mlir.context():
        parsed = mlir.parse(program.bytecode)
        block = mlir.entry_block(mlir.main_function(parsed))
        return [op.name for op in mlir.block_operations(block) if op.name in (TURN, SCATTER)]


@pytest.mark.parametrize(
    ("parts", "turned", "scatters"),
    [
        pytest.param(split(MESH_2X4, "", "xy"), split(MESH_2X4, "xy", ""), 1, id="along_one_dim"),
        pytest.param(split(MESH_2X4, "x", "y"), split(MESH_2X4, "y", "x"), 2, id="along_two_dims"),
    ],
)
def test_a_contraction_is_transposed_before_it_is_scattered(
    parts: ArraySharding, turned: ArraySharding, scatters: int
) -> None:
    program = partitioned(lambda x, w: reshard(x @ w).T, (X, W), INPUTS, [turned], [WHOLE, parts, turned])
    # The contraction gives the transposed result at once.
    assert turns_and_scatters(program) == [SCATTER] * scatters


def test_a_contraction_is_transposed_before_it_is_summed() -> None:
    program = partitioned(lambda x, w: (x @ w).T, (X, W), INPUTS, [WHOLE], [WHOLE, WHOLE])
    assert kinds(program) == ["all-reduce"]
    assert turns_and_scatters(program) == []


def test_what_is_no_contraction_is_scattered_first() -> None:
    """Its parts are less to transpose than the whole."""
    parts, turned = split(MESH_2X4, "", "xy"), split(MESH_2X4, "xy", "")
    inputs = [split(MESH_2X4, "xy", "", "")]
    program = partitioned(lambda z: reshard(z.sum(0)).T, (Z,), inputs, [turned], [WHOLE, parts, turned])
    assert turns_and_scatters(program) == [SCATTER, TURN]


def test_a_part_that_is_also_used_as_it_is_stays_as_it_is() -> None:
    parts, turned = split(MESH_2X4, "", "xy"), split(MESH_2X4, "xy", "")

    def function(x, w):
        part = reshard(x @ w)
        return part.T, part

    program = partitioned(function, (X, W), INPUTS, [turned, parts], [WHOLE, parts, turned])
    assert turns_and_scatters(program) == [SCATTER, TURN]
