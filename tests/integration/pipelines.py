"""Pipelines of the workloads' models, in this process or on a Ray cluster: what is crossed, and the comparison.

Takes a `Case`; its `hold` runs it and holds what it gives against the serial run. `COVERING` are the cases that tests
run: each value of each factor meets each value of each other factor in one of them. With ALPA_CFP_FULL_MATRIX=1 in the
environment, tests run all there are.
"""

import itertools
import os
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any, Literal

import alpa
import jax
import numpy as np
from alpa import AutoLayerOption, AutoShardingOption, PipeshardParallel, UniformStageOption

from alpa_cfp import CFPOption
from alpa_cfp_bench.workloads.model import Model, train_step
from alpa_cfp_bench.workloads.models import build
from integration.serial import assert_equal_up_to_rounding, expected_steps, run_serially

# More than there are stages, so that each schedule has a beginning, a middle and an end; with four stages, as many.
NUM_MICRO_BATCHES = 4
BY = {"ilp": AutoShardingOption(), "cfp": CFPOption(costs="estimate", progress=False)}
FACTORS = {
    "model": ("mlp", "gpt", "moe", "conv"),
    "stages": (2, 4),
    "schedule": ("gpipe", "1f1b", "1f1b_overlap_friendly", "inference"),
    "by": ("ilp", "cfp"),
}
Where = Literal["in this process", "on two hosts"]


@dataclass(frozen=True)
class Case:
    """A pipeline.

    Attributes:
        model: What `build` calls it.
        stages: How many, of equal size.
        schedule: Alpa's name of it; "inference" runs the model forward, the others train.
        by: Who shards a stage.
    """

    model: str
    stages: int
    schedule: str
    by: str

    def __str__(self) -> str:
        return "-".join(map(str, astuple(self)))

    def hold(self) -> Any:
        """Hold what the pipeline gives against the serial run; gives the parallel function.

        Raises:
            AssertionError: the results differ, or there are not as many meshes as stages.
        """
        method = pipeline(self.stages, pipeline_schedule=self.schedule, default_auto_sharding_option=BY[self.by])
        parallel = (hold_inference if self.schedule == "inference" else hold_steps)(self.model, method)
        assert len(parallel.get_last_executable().mesh_group) == self.stages
        return parallel


COVERING: dict[Where, tuple[Case, ...]] = {
    "in this process": (
        Case("mlp", 4, "gpipe", "cfp"),
        Case("mlp", 2, "1f1b", "ilp"),
        Case("mlp", 4, "1f1b_overlap_friendly", "ilp"),
        Case("gpt", 2, "gpipe", "cfp"),
        Case("gpt", 4, "1f1b", "ilp"),
        Case("gpt", 2, "inference", "ilp"),
        Case("moe", 2, "gpipe", "ilp"),
        Case("moe", 4, "1f1b_overlap_friendly", "ilp"),
        Case("moe", 4, "inference", "cfp"),
        Case("conv", 4, "1f1b", "cfp"),
        Case("conv", 2, "1f1b_overlap_friendly", "cfp"),
        Case("conv", 2, "inference", "ilp"),
    ),
    # A cluster takes seconds to make meshes, so here are as few as meet everything.
    "on two hosts": (
        Case("mlp", 2, "inference", "cfp"),
        Case("gpt", 4, "1f1b_overlap_friendly", "cfp"),
        Case("moe", 2, "1f1b", "ilp"),
        Case("conv", 4, "gpipe", "ilp"),
    ),
}


def cases(where: Where) -> tuple[Case, ...]:
    """Those that are to be run."""
    if os.environ.get("ALPA_CFP_FULL_MATRIX") == "1":
        return tuple(itertools.starmap(Case, itertools.product(*FACTORS.values())))
    return COVERING[where]


def pipeline(stages: int, **options: Any) -> PipeshardParallel:
    """Alpa's method with so many stages of equal size; `options` are further arguments of it."""
    method = {
        "num_micro_batches": NUM_MICRO_BATCHES,
        "layer_option": AutoLayerOption(layer_num=stages),
        "stage_option": UniformStageOption(num_stages=stages),
    }
    return PipeshardParallel(**{**method, **options})


def hold_steps(name: str, method: PipeshardParallel) -> Any:
    """Hold two training steps of the model called `name` against the serial ones; gives the parallel step."""
    model = build(name)
    step = alpa.parallelize(train_step(model, alpa.value_and_grad), method=method)
    state = jax.tree.map(np.array, model.state)
    for expected in expected_steps(name, method.num_micro_batches, 2):
        state, metrics, grads = step(state, model.batch)
        actual = jax.tree.map(np.asarray, (state, metrics, grads))
        assert_equal_up_to_rounding(actual, (expected.state, expected.metrics, expected.grads))
    return step


def hold_inference(name: str, method: PipeshardParallel) -> Any:
    """Hold what the model called `name` predicts for its batch against the serial run; gives the parallel function."""
    model = build(name)
    function = prediction(model)
    parallel = alpa.parallelize(function, method=method, donate_argnums=())
    actual = np.asarray(parallel(model.state, model.batch))
    assert_equal_up_to_rounding(actual, run_serially(function, model.state, model.batch))
    return parallel


def prediction(model: Model) -> Callable[[Any, Any], jax.Array]:
    """What the model says of a batch: (state, batch) -> an array whose dim 0 are the samples."""

    def predict(state: Any, batch: Any) -> jax.Array:
        if model.name == "mlp":
            return state.apply_fn(state.params, batch["x"])
        if model.name == "conv":
            variables = {"params": state.params, "batch_stats": state.batch_stats}
            return state.apply_fn(variables, batch["image"], train=False)
        inputs = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
        return state.apply_fn(state.params, *(batch[key] for key in inputs)).logits

    return predict
