"""Pipelines within this process against the serial run: models, schedules, numbers of stages, who shards a stage."""

import gc
from collections.abc import Iterator
from typing import Any

import alpa
import jax
import numpy as np
import pytest
from alpa import AutoLayerOption, AutoShardingOption, PipeshardParallel, UniformStageOption

from alpa_cfp import CFPOption
from alpa_cfp.workloads.model import train_step
from alpa_cfp.workloads.models import build
from integration.serial import assert_equal_up_to_rounding, expected_steps

BY = {"ilp": AutoShardingOption(), "cfp": CFPOption(costs="estimate", progress=False)}
CASES = [
    # model, schedule, stages, micro-batches, who shards
    ("mlp", "1f1b", 2, 2, "ilp"),
    ("mlp", "gpipe", 4, 4, "cfp"),
    ("mlp", "1f1b_overlap_friendly", 4, 4, "ilp"),
    ("gpt", "1f1b", 2, 2, "ilp"),
    ("gpt", "1f1b", 2, 2, "cfp"),
    ("gpt", "1f1b", 4, 4, "ilp"),
    ("gpt", "1f1b_overlap_friendly", 2, 4, "ilp"),
    ("moe", "gpipe", 2, 2, "ilp"),
    ("moe", "1f1b", 2, 2, "cfp"),
    ("conv", "1f1b", 2, 2, "ilp"),
]


@pytest.fixture(autouse=True)
def local() -> Iterator[None]:
    """Alpa in this process alone; the meshes of a test end with it."""
    alpa.init(cluster="local")
    yield
    alpa.shutdown()
    gc.collect()


def pipeline(stages: int, **options: Any) -> PipeshardParallel:
    method = {
        "num_micro_batches": 2,
        "layer_option": AutoLayerOption(layer_num=stages),
        "stage_option": UniformStageOption(num_stages=stages),
        "pipeline_schedule": "1f1b",
    }
    return PipeshardParallel(**{**method, **options})


@pytest.mark.parametrize(("model", "schedule", "stages", "micro_batches", "by"), CASES)
def test_two_steps_of_a_pipeline_equal_the_serial_steps(
    model: str, schedule: str, stages: int, micro_batches: int, by: str
) -> None:
    built = build(model)
    method = pipeline(
        stages, num_micro_batches=micro_batches, pipeline_schedule=schedule, default_auto_sharding_option=BY[by]
    )
    step = alpa.parallelize(train_step(built, alpa.value_and_grad), method=method)
    state = jax.tree.map(np.array, built.state)
    for expected in expected_steps(model, micro_batches, 2):
        state, metrics, grads = step(state, built.batch)
        actual = jax.tree.map(np.asarray, (state, metrics, grads))
        assert_equal_up_to_rounding(actual, (expected.state, expected.metrics, expected.grads))
    assert len(step.get_last_executable().mesh_group) == stages
