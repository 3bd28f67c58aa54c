"""An option that is a planner is asked in place of the ILP, told what it has to know, and what it decides is run."""

from dataclasses import dataclass, field
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa.shard_parallel import auto_sharding

from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.propagation import propagate
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from alpa_cfp_bench.workloads.meshes import logical_mesh
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.sizes import BATCH_SIZE
from alpa_on_jax.xla_extension.planner import PlanRequest, current
from integration.serial import assert_equal_up_to_rounding, expected_steps

pytestmark = pytest.mark.slow


@dataclass
class BatchOnAxis0(alpa.AutoShardingOption):
    """Splits dim 0 of every input that is as long as the batch, and propagates."""

    asked: list[tuple[HloModule, PlanRequest]] = field(default_factory=list)

    def annotate_module(self, module: HloModule, request: PlanRequest) -> None:
        self.asked.append((module, request))
        mesh = LogicalMesh(tuple(request.logical_mesh.shape))
        inputs = [
            ArraySharding(mesh, ((mesh.axes[0],), *(() for _ in shape.dims[1:])))
            if shape.dims and shape.dims[0] * request.num_micro_batches == BATCH_SIZE
            else None
            for shape in module.shape.parameters
        ]
        propagate(module, mesh, to_outputs=True, inputs=inputs)


def _parallel(option: Any, num_micro_batches: int | None) -> tuple[Any, Any]:
    model = build("mlp")
    method = alpa.ShardParallel(logical_mesh("2x4"), num_micro_batches, option)
    step: Any = alpa.parallelize(train_step(model, alpa.value_and_grad), method=method)
    return step, step(jax.tree.map(jnp.copy, model.state), model.batch)


@pytest.mark.parametrize("num_micro_batches", [None, 2])
def test_a_planners_program_equals_the_serial_run(num_micro_batches: int | None) -> None:
    _, (state, metrics, grads) = _parallel(BatchOnAxis0(), num_micro_batches)
    expected = expected_steps("mlp", num_micro_batches, 1)[0]
    assert_equal_up_to_rounding(jax.tree.map(np.asarray, state), expected.state)
    assert_equal_up_to_rounding(jax.tree.map(np.asarray, metrics), expected.metrics)
    assert_equal_up_to_rounding(jax.tree.map(np.asarray, grads), expected.grads)


def test_the_planner_decides_and_no_ilp_is_solved() -> None:
    auto_sharding.last_objective = 1.0
    step, _ = _parallel(BatchOnAxis0(), None)
    _, placements = step.get_last_executable().get_input_placement_specs()
    assert (
        str(placements["x"].sharding_specs[0])
        == "ShardingSpec((Chunked(2), NoSharding()), (ShardedAxis(axis=0), Replicated(replicas=4)))"
    )
    assert auto_sharding.last_objective is None


@pytest.mark.parametrize("num_micro_batches", [None, 2])
def test_the_planner_is_told_mesh_and_micro_batches(num_micro_batches: int | None) -> None:
    option = BatchOnAxis0()
    _parallel(option, num_micro_batches)
    ((_, request),) = option.asked
    assert request.logical_mesh.shape == (2, 4)
    assert request.logical_mesh.physical_mesh.num_devices == 8
    assert request.num_micro_batches == (num_micro_batches or 1)
    assert request.gradients == ()
    assert request.memory_budget_bytes is None


def test_after_a_planner_the_ilp_decides_for_other_options() -> None:
    _parallel(BatchOnAxis0(), None)
    assert current() is None
    _parallel(alpa.AutoShardingOption(), None)
    assert auto_sharding.last_objective is not None


def test_a_planner_that_fails_is_not_asked_again() -> None:
    class Failing(BatchOnAxis0):
        def annotate_module(self, module: HloModule, request: PlanRequest) -> None:
            raise ValueError("no plan")

    with pytest.raises(ValueError, match="no plan"):
        _parallel(Failing(), None)
    assert current() is None
