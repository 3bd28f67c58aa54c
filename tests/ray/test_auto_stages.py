"""Stages that Alpa chooses by timing candidates on submeshes of a cluster, with its ILP inside.

`test_stage_faults.py` has what becomes of it when something breaks.
"""

import contextlib
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import alpa
import jax
import numpy as np
import pytest
from alpa import ManualLayerOption, PipeshardParallel
from alpa.pipeline_parallel import stage_profiling
from alpa.pipeline_parallel.stage_construction import get_last_dp_result

from alpa_cfp import CFPOption
from alpa_cfp.database import ProfileDatabase
from alpa_cfp_bench.workloads.models import build
from alpa_on_jax import errors
from alpa_on_jax.alpa.pipeline_parallel.stage_results import told_apart
from integration.serial import assert_equal_up_to_rounding, expected_steps
from integration.stages import (
    MODEL,
    NUM_DEVICES,
    NUM_MICRO_BATCHES,
    choose_stages,
    costs_of_stages,
    held,
    stage_option,
    step_in_stages,
)


@dataclass(frozen=True)
class Run:
    """A step in stages that were chosen.

    Attributes:
        values: What it gave.
        layers, shapes: The layers of each stage, and the shape of its submesh.
        file: What alpa wrote into the folder in which the program ran.
        again: What a second function hears for which stages are to be chosen on the same devices.
    """

    values: Any
    layers: list[list[int]]
    shapes: list[tuple[int, int]]
    file: Path
    again: str

    @property
    def results(self) -> dict[Any, Any]:
        """What was measured of each candidate."""
        return np.load(self.file, allow_pickle=True).item()


@pytest.fixture(scope="module")
def run(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One step on two hosts."""
    folder, built = tmp_path_factory.mktemp("stages"), build(MODEL)
    with contextlib.chdir(folder), held(2):
        values = jax.tree.map(np.asarray, step_in_stages()(jax.tree.map(np.array, built.state), built.batch))
        _, layers, shapes, _, _ = (value or [] for value in get_last_dp_result())
        with pytest.raises(errors.StageOptionError) as again:
            choose_stages()
    (file,) = folder.iterdir()
    return Run(values, layers, [tuple(shape) for shape in shapes], file, str(again.value))


def test_a_step_in_stages_chosen_on_two_hosts_equals_the_serial_one(run: Run) -> None:
    (expected,) = expected_steps(MODEL, NUM_MICRO_BATCHES, 1)
    assert_equal_up_to_rounding(run.values, (expected.state, expected.metrics, expected.grads))
    assert run.layers == [[0], [1]]
    assert run.shapes == [(1, NUM_DEVICES)] * 2


def test_stages_are_chosen_once_for_the_devices_of_a_cluster(run: Run) -> None:
    assert "cuts the cluster into meshes, and this has been done already" in run.again


def test_what_was_measured_can_be_read_again_in_place_of_measuring(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    results = run.results
    assert sorted(results) == [(0, 0, 0, 0), (0, 1, 0, 0), (1, 1, 0, 0)]
    with held(2):
        costs = costs_of_stages(cached_profile_result=str(run.file))
    for (first, last, _, _), result in results.items():
        assert costs[first, last] == told_apart(
            np.array(sum(part.compute_cost for part in result.module_profile_results))
        )


def test_what_was_measured_of_another_model_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with held(2), pytest.raises(errors.StageOptionError, match="has results of another model, or of other layers"):
        choose_stages("gpt", cached_profile_result=str(run.file))


def test_stages_that_do_not_fit_into_memory_end_in_what_the_smallest_needs(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    results = run.results
    for result in results.values():
        result.available_memory = 1024
    (tmp_path / "small.pkl").write_bytes(pickle.dumps(results))
    with held(2), pytest.raises(errors.NoStagesError, match=r"3 candidate stages do not fit .* of the 0\.0 MiB that"):
        choose_stages(cached_profile_result="small.pkl")


def test_an_inference_in_stages_chosen_by_the_times_of_single_layers_equals_the_serial_one(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    weights = np.random.default_rng(0).normal(size=(2, 16, 16)).astype(np.float32)
    batch = np.random.default_rng(1).normal(size=(8, 16)).astype(np.float32)

    def predict(weights: Any, batch: Any) -> Any:
        hidden = jax.numpy.tanh(batch @ weights[0])
        alpa.mark_pipeline_boundary()
        return hidden @ weights[1]

    method = PipeshardParallel(
        num_micro_batches=2,
        layer_option=ManualLayerOption(),
        stage_option=stage_option(layer_profile_mode="individual"),
        pipeline_schedule="inference",
    )
    with held(1):
        actual = np.asarray(alpa.parallelize(predict, method=method)(weights, batch))
    assert_equal_up_to_rounding(actual, np.asarray(jax.jit(predict)(weights, batch)))


@pytest.mark.parametrize(("stage_costs", "refine"), [("profile", 0), ("profile", 1), ("compose", 1)])
def test_a_step_in_stages_that_cfp_plans_equals_the_serial_one(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage_costs: Any, refine: int
) -> None:
    monkeypatch.chdir(tmp_path)
    timed: list[int] = []
    profile_all = stage_profiling.profile_all

    def profile(stages: Any, *rest: Any) -> Any:
        timed.append(len(stages))
        return profile_all(stages, *rest)

    monkeypatch.setattr(stage_profiling, "profile_all", profile)
    option = CFPOption(database="profiles.sqlite", samples=2, progress=False, refine=refine, stage_costs=stage_costs)
    built = build(MODEL)
    with held(2):
        step = step_in_stages(by=option, submesh_logical_shape_space="single_node_model_parallel")
        values = jax.tree.map(np.asarray, step(jax.tree.map(np.array, built.state), built.batch))
        _, layers, *_ = get_last_dp_result()
    (expected,) = expected_steps(MODEL, NUM_MICRO_BATCHES, 1)
    assert_equal_up_to_rounding(values, (expected.state, expected.metrics, expected.grads))
    assert layers == [[0], [1]]
    # Only the plans of stages that are chosen are timed end to end, and that where costs are not composed.
    is_timed = [plan.measured_s is not None for plan in option.plans]
    assert is_timed == [False] * 3 + [stage_costs == "profile" and refine > 0] * 2
    # Three candidates: layer 0, layer 1, both. Each is in alpa's two logical shapes, which are one to CFP, timed once.
    # Where costs are composed, none is compiled.
    assert sum(timed) == (3 if stage_costs == "profile" else 0)
    with ProfileDatabase.open("profiles.sqlite", readonly=True) as profiles:
        assert {key.mesh_shape for key, _ in profiles.items()} == {(1, NUM_DEVICES)}
