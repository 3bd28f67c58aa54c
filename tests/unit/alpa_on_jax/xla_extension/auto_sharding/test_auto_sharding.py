"""What the auto-sharding pass does around the ILP: propagation without one, and which gradients stay unreduced."""

from collections.abc import Iterator

import numpy as np
import pytest

from alpa_on_jax.xla_extension import (
    CompileOptions,
    clear_pass_context,
    run_auto_sharding,
    run_spmd_partitioner,
    set_pass_context,
)
from alpa_on_jax.xla_extension.hlo_module import set_hlo_module_input_shardings
from unit.alpa_on_jax.xla_extension.helpers import MESH_2X4, lower, split

X = np.ones((8, 16), np.float32)
OPTIONS = CompileOptions(num_partitions=8, propagate_to_outputs=True)


@pytest.fixture(autouse=True)
def _no_context_remains() -> Iterator[None]:
    yield
    clear_pass_context()


def _module():
    module = lower(lambda old, x: old + x.T @ x, (np.zeros((16, 16), np.float32), X))
    set_hlo_module_input_shardings(module, [split(MESH_2X4, *dims).to_proto() for dims in (("", ""), ("xy", ""))])
    return module


def test_without_a_solver_shardings_are_propagated():
    set_pass_context({"auto_sharding::enable": False, "auto_sharding::device_mesh_shape": [2, 4]})
    module = _module()
    run_auto_sharding(module, OPTIONS)
    assert module.mesh == MESH_2X4
    assert module.input_shardings[1] == split(MESH_2X4, "xy", "")


def test_a_mesh_of_one_device_needs_no_solver():
    set_pass_context({"auto_sharding::enable": True, "auto_sharding::device_mesh_shape": [1, 1]})
    module = lower(lambda x: x + 1, (X,))
    run_auto_sharding(module, OPTIONS)
    assert module.input_shardings[0].is_replicated


@pytest.mark.parametrize("rewrite", [True, False])
def test_gradients_are_left_unreduced_only_where_alpa_says_so(rewrite):
    set_pass_context({"auto_sharding::enable": False, "auto_sharding::device_mesh_shape": [2, 4]})
    module = _module()
    run_auto_sharding(module, OPTIONS)
    set_pass_context({"auto_sharding::rewrite_for_grad_acc": rewrite, "auto_sharding::rewrite_indices": [0]})
    run_spmd_partitioner(module, OPTIONS)
    assert module.partitioned is not None
    assert bool(module.partitioned.unreduced_outputs[0]) is rewrite
