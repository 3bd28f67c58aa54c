"""Stages that Alpa chooses by their times, on as few devices and candidates as there can be; for tests on a cluster.

Takes options of `AutoStageOption`; gives a parallelized step of two layers, or only the table of costs that its stages
would be chosen from, which spares what comes after it. The submesh of a stage is one host, of which `NUM_DEVICES` are
held.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import alpa
import jax
import numpy as np
import pytest
import ray
from alpa import AutoLayerOption, AutoShardingOption, AutoStageOption, PipeshardParallel
from alpa.device_mesh import get_global_cluster
from alpa.pipeline_parallel import stage_construction
from alpa.util import get_num_available_gpus

from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from integration.processes import processes_of, wait_until

NUM_DEVICES = 2
MODEL = "mlp"
NUM_MICRO_BATCHES = 2

_WORKERS = ("CompileWorker", "ProfileWorker", "RayHost")


def stage_option(**options: Any) -> AutoStageOption:
    """Candidates on one submesh shape and in one logical shape, unless told."""
    usual = {
        "submesh_physical_shape_space": "manual",
        "manually_specified_submeshes": ((1, NUM_DEVICES),),
        "submesh_logical_shape_space": "same_as_physical",
    }
    return AutoStageOption(**(usual | options))


def step_in_stages(model: str = MODEL, by: AutoShardingOption | None = None, **options: Any) -> Any:
    """A training step of a model, cut into two layers; `by` shards stages (the ILP if not told)."""
    method = PipeshardParallel(
        num_micro_batches=NUM_MICRO_BATCHES,
        layer_option=AutoLayerOption(layer_num=2),
        stage_option=stage_option(**options),
        default_auto_sharding_option=by,
    )
    return alpa.parallelize(train_step(build(model), alpa.value_and_grad), method=method)


class _Chosen(Exception):
    """Has the table from which stages would be chosen."""


def costs_of_stages(**options: Any) -> np.ndarray:
    """Alpa's table of costs of the candidates of `step_in_stages`: [first layer, last layer]."""

    def choose(*given: Any) -> None:
        raise _Chosen(given[5])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_construction, "training_dp", choose)
        with pytest.raises(_Chosen) as chosen:
            choose_stages(**options)
    (costs,) = chosen.value.args
    return costs[:, :, 0, 0]


def choose_stages(model: str = MODEL, **options: Any) -> None:
    """Compile `step_in_stages`, which begins with the choice of its stages."""
    built = build(model)  # not under eval_shape: it is kept for others
    step_in_stages(model, **options).get_executable(jax.eval_shape(lambda: built.state), built.batch)


@contextlib.contextmanager
def held(num_hosts: int) -> Iterator[None]:
    """Alpa on the cluster that this process is connected to, with few devices."""
    alpa.init(cluster="ray", num_nodes=num_hosts, num_devices_per_node=NUM_DEVICES)
    try:
        yield
    finally:
        alpa.shutdown()


def wait_until_clean(folder: str) -> None:
    """Wait until the cluster of `folder` has nothing of a construction of stages left, but what `alpa.init` holds."""

    def is_clean() -> bool:
        texts, cluster = processes_of(folder).values(), get_global_cluster()
        groups = [group for group in ray.util.placement_group_table().values() if group["state"] != "REMOVED"]
        return (
            not any(worker in text for text in texts for worker in _WORKERS)
            and get_num_available_gpus(cluster.placement_group) == cluster.num_devices
            and len(groups) == 1
        )

    wait_until(is_clean)


def ask(worker: Any, function: Callable[[Any], Any]) -> Any:
    """What a function says of an actor's object, in the actor's process."""
    return ray.get(worker.__ray_call__.remote(function))
