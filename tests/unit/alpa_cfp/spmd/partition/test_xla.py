"""Programs that are left to XLA's partitioner: they compute the same, with the shardings that were asked for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_cfp.spmd.partition.shardy import partition_with_shardy
from alpa_cfp.spmd.partition.xla import leave_to_xla
from unit.alpa_cfp.spmd.helpers import (
    MESH_2X4,
    MESHES,
    annotate,
    annotate_randomly,
    assert_parts_equal,
    lower,
    mesh_id,
    run,
    split,
    values_of,
)

X, W = (np.random.default_rng(7).standard_normal(shape).astype(np.float32) for shape in ((8, 16), (16, 8)))


def _program(x, w):
    def body(carry, row):
        return carry + jax.lax.erf(row @ w), carry.sum()

    total, sums = jax.lax.scan(body, jnp.zeros(8), x)
    return total, sums, jnp.argmax(x @ w, 1)


@pytest.mark.parametrize("mesh", MESHES, ids=mesh_id)
def test_a_loop_over_split_arrays_is_right_however_each_value_is_sharded(mesh):
    module = annotate_randomly(lower(_program, (X, W)), mesh, seed=1)
    assert_parts_equal(run(module, leave_to_xla(module, "asked for"), (X, W)), values_of(_program, (X, W)))


def test_results_have_the_shardings_that_were_asked_for():
    outputs = [split(MESH_2X4, "x"), split(MESH_2X4, "y"), split(MESH_2X4, "yx")]
    module = annotate(lower(_program, (X, W)), MESH_2X4, [split(MESH_2X4, "y", ""), split(MESH_2X4, "x", "")], outputs)
    program = leave_to_xla(module, "asked for")
    assert list(program.output_shardings) == outputs
    assert [result.addressable_shards[0].data.shape for result in run(module, program, (X, W))] == [(4,), (2,), (1,)]


@pytest.mark.parametrize("partition", [leave_to_xla, partition_with_shardy])
def test_a_module_without_annotations_is_refused(partition):
    with pytest.raises(ValueError, match="needs an annotated module"):
        partition(lower(_program, (X, W)), "")
