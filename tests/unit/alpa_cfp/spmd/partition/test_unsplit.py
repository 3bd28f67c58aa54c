"""Ops that work along a split dim: refused, left to XLA, or made whole where gradients' sums have to be moved."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from alpa_cfp.spmd.partition import UnsupportedByShardyError, partition
from alpa_cfp.spmd.partition.shardy import partition_with_shardy
from unit.alpa_cfp.spmd.helpers import (
    MESH_2X4,
    Case,
    annotate,
    assert_partitioned_right,
    split,
)

pytestmark = pytest.mark.slow

VALUE = np.random.default_rng(2).standard_normal((8, 8)).astype(np.float32)
WORKING = {
    "slice": lambda x: x[:, 1:5],
    "reverse": lambda x: jnp.flip(x, 1),
    "pad": lambda x: jnp.pad(x, ((0, 0), (4, 4))),
    "concatenate": lambda x: jnp.concatenate([x, x * 2], 1),
    "sort": lambda x: jnp.sort(x, axis=1),
    "cumulative sum": lambda x: jnp.cumsum(x, axis=1),
    "argmax": lambda x: jnp.argmax(x, 1),
    "dynamic slice": lambda x: lax.dynamic_slice(x, (0, (x[0, 0] > 0).astype(jnp.int32)), (8, 4)),
    "dynamic update slice": lambda x: lax.dynamic_update_slice(x, x[:, :4] * 2, (0, 2)),
    "pooling": lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID"),
}


def _annotated(name):
    case = Case(WORKING[name], (VALUE,), "is split|is not covered")
    return case, annotate(case.module(), MESH_2X4, [split(MESH_2X4, "x", "y")])


@pytest.mark.parametrize("name", WORKING)
def test_with_whole_dims_every_device_computes_its_part(name):
    case, module = _annotated(name)
    program = assert_partitioned_right(module, case.arguments, case.expected(), whole_dims=True)
    assert program.partitioner == "shardy"


@pytest.mark.parametrize("name", WORKING)
def test_without_them_the_program_is_right_by_whichever_partitioner(name):
    case, module = _annotated(name)
    assert_partitioned_right(module, case.arguments, case.expected(), refused=case.refused)


def test_a_program_is_left_to_xla_with_the_reason():
    _, module = _annotated("reverse")
    with pytest.raises(UnsupportedByShardyError, match="dim 1, along which it works, is split"):
        partition_with_shardy(module, ())
    program = partition(module)
    assert (program.partitioner, program.collectives) == ("xla", ())
    assert "dim 1" in program.fallback_reason


def test_dims_are_made_whole_where_gradients_have_to_be_summed_later():
    def step(old, x):
        return old + x.T @ jnp.flip(x, 1)

    case = Case(step, (np.zeros((8, 8), np.float32), VALUE))
    inputs = [split(MESH_2X4, "", ""), split(MESH_2X4, "x", "y")]
    module = annotate(case.module(), MESH_2X4, inputs, [split(MESH_2X4, "", "")])
    program = partition(module, (0,))
    assert program.partitioner == "shardy"
