"""What a part of a program gives others as copies of a smaller array is timed without making the copies."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from alpa_cfp.costs import read_local
from alpa_cfp.spmd.ir.shapes import Shape
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import partition_to_run
from alpa_cfp.spmd.partition.inlined_results import without_broadcasts
from alpa_cfp.spmd.propagation import propagate
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from unit.alpa_cfp.spmd.helpers import load, lower, split

MESH = LogicalMesh((8,))
ROWS, COLUMNS = 16, 64


def partitioned(function: Any) -> HloModule:
    """A function of a matrix whose rows are split over all devices."""
    module = lower(function, (np.ones((ROWS, COLUMNS), np.float32),))
    propagate(module, MESH, to_outputs=True, inputs=[split(MESH, "x", "")])
    module.solved = True
    module.partitioned = partition_to_run(module)
    return module


def rows() -> jax.sharding.Sharding:
    """Rows split over all devices of this process."""
    return jax.sharding.NamedSharding(jax.sharding.Mesh(np.array(jax.devices()), ("x",)), jax.P("x"))


def local_results(module: HloModule) -> list[tuple[int, ...]]:
    """The shapes of what each device gives."""
    return [shape.dims for shape in module.shape.results]


def test_a_broadcast_is_given_as_what_it_is_made_of() -> None:
    module = partitioned(lambda x: (jnp.broadcast_to(jnp.tanh(x).sum(1, keepdims=True), x.shape), jnp.tanh(x)))
    smaller = without_broadcasts(module)
    assert local_results(smaller) == [(ROWS // 8,), (ROWS, COLUMNS)]
    # A broadcast counts as not written.
    before, after = (read_local(each.partitioned) for each in (module, smaller) if each.partitioned)
    assert after.written_bytes == before.written_bytes


def test_what_is_left_can_be_run() -> None:
    smaller = without_broadcasts(partitioned(lambda x: jnp.broadcast_to(x.max(1)[:, None], x.shape)))
    (result,) = load(smaller).run([jax.device_put(np.ones((ROWS, COLUMNS), np.float32), rows())])
    assert [shard.data.shape for shard in result.addressable_shards] == [(ROWS // 8,)] * 8
    load(smaller).runner_with_dummy_inputs()()


def test_what_is_no_larger_than_what_it_is_made_of_stays() -> None:
    module = partitioned(lambda x: (x.reshape(ROWS, COLUMNS // 4, 4), jnp.exp(x)))
    assert without_broadcasts(module) is module


def test_a_parameter_that_is_broadcast_is_given_as_it_is() -> None:
    smaller = without_broadcasts(partitioned(lambda x: jnp.broadcast_to(x, (4, *x.shape))))
    assert smaller.shape.results == (Shape((ROWS // 8, COLUMNS), np.dtype(np.float32)),)
