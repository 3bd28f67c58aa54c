"""What the auto-sharding pass does around the ILP: propagation without one, and which gradients stay unreduced.

Also what it leaves in alpa of its solution, and which programs it refuses.
"""

from collections.abc import Iterator

import jax
import numpy as np
import pytest
from alpa.shard_parallel import auto_sharding

from alpa_cfp.spmd.module.hlo_module import set_hlo_module_input_shardings
from alpa_on_jax.xla_extension import (
    CompileOptions,
    clear_pass_context,
    run_auto_sharding,
    run_spmd_partitioner,
    set_pass_context,
)
from unit.alpa_cfp.spmd.helpers import MESH_2X4, lower, split

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


def _context(mesh_shape: tuple[int, int], **options: object) -> None:
    mesh = {"device_mesh_shape": mesh_shape, "device_mesh_alpha": (1.0, 1.0), "device_mesh_beta": (1.0, 0.1)}
    set_pass_context({f"auto_sharding::{name}": value for name, value in (mesh | {"enable": True} | options).items()})


@pytest.mark.parametrize(
    ("mesh_shape", "options"),
    [((2, 4), {"enable": False}), ((1, 1), {}), ((2, 4), {"force_simple_heuristic": "shard-first"})],
    ids=["propagation", "one device", "heuristic"],
)
def test_where_nothing_is_solved_alpa_keeps_no_solution_of_an_earlier_program(mesh_shape, options):
    _context((2, 4))
    run_auto_sharding(lower(lambda x: x.T @ x, (X,)), OPTIONS)
    assert auto_sharding.last_s_val is not None
    _context(mesh_shape, **options)
    run_auto_sharding(lower(lambda x: x + 1, (X,)), OPTIONS)
    assert auto_sharding.last_objective is None
    assert auto_sharding.last_s_val is None


def test_where_something_is_solved_alpa_keeps_its_solution():
    _context((2, 4))
    auto_sharding.last_objective = None
    run_auto_sharding(lower(lambda x: x.T @ x, (X,)), OPTIONS)
    assert auto_sharding.last_objective is not None
    assert auto_sharding.last_objective > 0


def test_a_custom_call_that_is_no_callback_is_not_refused():
    _context((2, 4))
    module = lower(jax.numpy.linalg.cholesky, (np.eye(8, dtype=np.float32),))
    run_auto_sharding(module, OPTIONS)
    assert module.solved
