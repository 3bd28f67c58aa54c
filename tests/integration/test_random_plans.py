"""A program is right whatever strategies its blocks get: combinations drawn at random equal the serial run."""

import random
from dataclasses import dataclass
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_cfp.analysis.blocks import find_blocks
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.apply import annotate
from alpa_cfp.strategies import strategies_of
from alpa_on_jax.xla_extension.hlo_module import HloModule
from alpa_on_jax.xla_extension.planner import PlanRequest
from alpa_on_jax.xla_extension.sharding import LogicalMesh
from integration.meshes import logical_mesh
from integration.models import build, train_step
from integration.serial import assert_equal_up_to_rounding, expected_steps

pytestmark = pytest.mark.slow

# Model, mesh, micro-batches, how many combinations.
DRAWS = [
    ("mlp", "2x4", None, 12),
    ("mlp", "1x8", 2, 6),
    ("mlp", "2x2", 2, 6),
    ("gpt", "2x4", None, 8),
    ("gpt", "1x8", 2, 3),
    ("bert", "2x2", None, 3),
    ("moe", "2x4", None, 4),
    ("moe", "1x8", None, 2),
    ("conv", "2x4", None, 4),
    ("wide_resnet", "1x8", None, 2),
]


@dataclass
class DrawnPlan(alpa.AutoShardingOption):
    """A strategy for each block, drawn with `seed`."""

    seed: int = 0

    def annotate_module(self, module: HloModule, request: PlanRequest) -> None:
        shape = tuple(request.logical_mesh.shape)
        blocks = find_blocks(read_graph(module.bytecode))
        drawn = random.Random(self.seed)
        strategies = [drawn.choice(strategies_of(block, shape)) for block in blocks.blocks]
        annotate(module, blocks, LogicalMesh(shape), strategies)


@pytest.mark.parametrize(
    ("model", "mesh", "num_micro_batches", "seed"),
    [(model, mesh, batches, seed) for model, mesh, batches, count in DRAWS for seed in range(count)],
)
def test_a_step_with_any_combination_of_strategies_equals_the_serial_one(
    model: str, mesh: str, num_micro_batches: int | None, seed: int
) -> None:
    built = build(model)
    method = alpa.ShardParallel(logical_mesh(mesh), num_micro_batches, DrawnPlan(seed=seed))
    step: Any = alpa.parallelize(train_step(built, alpa.value_and_grad), method=method)
    actual = step(jax.tree.map(jnp.copy, built.state), built.batch)
    wanted = expected_steps(model, num_micro_batches, 1)[0]
    for values, expected in zip(actual, (wanted.state, wanted.metrics, wanted.grads), strict=True):
        assert_equal_up_to_rounding(jax.tree.map(np.asarray, values), expected)
