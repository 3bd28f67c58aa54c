"""Runs of the models through `alpa.parallelize`: takes a case, gives back its values after each step and its program.

A case is compiled and run once a process, since many tests look at it. Invariant: nothing here knows what the right
values are; those come from serial.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np
from alpa.parallel_method import ParallelMethod

from alpa_cfp_bench.workloads.meshes import logical_mesh
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import MODELS, build
from alpa_cfp_bench.workloads.shardings import STYLES, manual_sharding
from alpa_cfp_bench.workloads.sizes import MESHES
from integration.serial import StepValues

NUM_STEPS = 2
# What takes long to compile, or is like another model, has one case a style, and alpa's methods on one mesh only, each
# with micro-batches or without.
_FEW_CASES = ("wide_resnet", "unet")
_FEW_LAYOUTS = (("1x8", "data_parallel"), ("2x4", "megatron"))


# Alpa's own methods, which decide by the ILP how everything is sharded. But for the first they are made for one axis.
METHODS: dict[str, Callable[..., ParallelMethod]] = {
    "ilp": alpa.ShardParallel,
    "data_parallel_method": alpa.DataParallel,
    "zero2": alpa.Zero2Parallel,
    "zero3": alpa.Zero3Parallel,
}


@dataclass(frozen=True)
class Case:
    """One program.

    Attributes:
        model: a key of MODELS.
        mesh: the logical mesh, such as "2x4".
        style: how it is sharded: a manual sharding (STYLES) or a method of alpa (METHODS).
        num_micro_batches: None without accumulation.
    """

    model: str
    mesh: str
    style: str
    num_micro_batches: int | None

    def __str__(self) -> str:
        batches = "whole_batch" if self.num_micro_batches is None else f"{self.num_micro_batches}_micro_batches"
        return f"{self.model}-{self.mesh}-{self.style}-{batches}"


@dataclass(frozen=True)
class Outcome:
    """What a case gave.

    Attributes:
        steps: the values after each of NUM_STEPS steps.
        state: the state after the last step, as alpa gives it back: on its devices.
        hlo_text: the compiled program or programs.
        executable: alpa's executable.
    """

    steps: list[StepValues]
    state: Any
    hlo_text: str
    executable: Any


def cases(*models: str) -> list[Case]:
    """All cases of `models`, of all models if none is named."""
    return [
        Case(model, mesh, style, num_micro_batches)
        for model in models or MODELS
        for mesh, style in (_FEW_LAYOUTS if model in _FEW_CASES else product(MESHES, STYLES))
        for num_micro_batches in (None, 2)
    ]


def automatic_cases(*models: str) -> list[Case]:
    """The cases in which alpa decides: each method on each mesh."""
    layouts = list(product(MESHES, METHODS))
    few = [(mesh, method) for mesh, method in layouts if method == "ilp" or mesh == "1x8"]
    every = [(*layout, number) for layout in layouts for number in (None, 2)]
    alternating = [(*layout, (None, 2)[place % 2]) for place, layout in enumerate(few)]
    return [
        Case(model, *layout) for model in models or MODELS for layout in (alternating if model in _FEW_CASES else every)
    ]


def parallel_method(case: Case) -> ParallelMethod:
    """Alpa's method for `case`: one that decides by itself, or manual shardings and no solver."""
    if case.style in METHODS:
        return METHODS[case.style](devices=logical_mesh(case.mesh), num_micro_batches=case.num_micro_batches)
    return alpa.ShardParallel(
        devices=logical_mesh(case.mesh),
        num_micro_batches=case.num_micro_batches,
        auto_sharding_option=alpa.AutoShardingOption(enable_auto_sharding=False),
        manual_sharding_option=manual_sharding(build(case.model), case.style),
    )


def executable(case: Case) -> Any:
    """Alpa's executable of `case`'s training step."""
    return run(case).executable


@cache
def run(case: Case) -> Outcome:
    """Compile `case`'s training step with alpa and run it NUM_STEPS times on the same batch."""
    model = build(case.model)
    step: Any = alpa.parallelize(train_step(model, alpa.value_and_grad), method=parallel_method(case))
    # A step donates its state, and the model's own is needed again.
    state = jax.tree.map(jnp.copy, model.state)
    steps = []
    for _ in range(NUM_STEPS):
        state, metrics, grads = step(state, model.batch)
        steps.append(StepValues(*jax.tree.map(np.asarray, (state, metrics, grads))))
    program = step.get_last_executable()
    return Outcome(steps, state, program.get_hlo_text(), program)
