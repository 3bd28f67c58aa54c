"""From the results of candidate stages to a choice, or to the reason why there is none; without a cluster."""

import io
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from alpa import AutoStageOption
from alpa.pipeline_parallel import stage_construction, stage_profiling
from alpa.pipeline_parallel.stage_profiling import ModuleProfileResult, StageProfileResult
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_on_jax import data_pickles, errors
from alpa_on_jax.alpa.pipeline_parallel import stage_checks
from alpa_on_jax.alpa.pipeline_parallel.stage_results import has_stages, told_apart
from alpa_on_jax.alpa.pipeline_parallel.stage_run import StageRun, started

SHAPES = ((1, 1), (1, 2))
MIB = 2**20


def table(*candidates: tuple[int, int, int]) -> np.ndarray:
    """Costs of two layers, where only these (first layer, last layer, shape) can be had."""
    costs = np.full((2, 2, 2, 1), np.inf)
    for candidate in candidates:
        costs[candidate] = 1.0
    return costs


@pytest.mark.parametrize(
    ("candidates", "num_devices", "expected"),
    [
        ([(0, 0, 0), (1, 1, 0)], 2, True),
        ([(0, 1, 1)], 2, True),
        ([(0, 0, 0), (1, 1, 1)], 3, True),
        ([(0, 0, 0), (1, 1, 0)], 3, False),
        ([(0, 1, 0)], 2, False),
        ([(0, 0, 1)], 2, False),
        ([(1, 0, 0), (1, 1, 0)], 2, False),
        ([], 1, False),
    ],
)
def test_stages_cover_each_layer_once_and_use_all_devices(
    candidates: list[tuple[int, int, int]], num_devices: int, expected: bool
) -> None:
    costs = table(*candidates)
    assert has_stages(costs, np.full(costs.shape, 2), SHAPES, num_devices) is expected


def test_a_stage_after_which_none_may_follow_is_the_last_one() -> None:
    costs = table((0, 0, 0), (1, 1, 0))
    followers = np.zeros(costs.shape)
    assert not has_stages(costs, followers, SHAPES, 2)
    followers[0, 0] = 1
    assert has_stages(costs, followers, SHAPES, 2)


def chosen(costs: np.ndarray) -> float:
    """What alpa's programme takes the best stages of two layers to cost, on two devices; infinite if it finds none."""
    cost, _ = stage_construction.training_dp(2, 2, 4, SHAPES, 1, costs, np.full(costs.shape, 2))
    return float(cost)


def test_stages_whose_costs_are_alike_are_overlooked_by_alpa_unless_they_are_told_apart() -> None:
    costs = table((0, 0, 0), (1, 1, 0))
    costs[0, 0, 0], costs[1, 1, 0] = 272.4e-6, 272.9e-6
    assert np.isinf(chosen(costs))
    assert chosen(told_apart(costs)) == pytest.approx(272.4e-6 + 4 * 272.9e-6, abs=6e-6)


@given(st.lists(st.floats(1e-7, 1e-5) | st.just(np.inf), min_size=8, max_size=8))
@settings(deadline=None)
def test_wherever_there_are_stages_alpas_programme_finds_them_if_costs_are_told_apart(values: list[float]) -> None:
    costs = np.array(values).reshape(2, 2, 2, 1)
    costs[1, 0] = np.inf  # no stage ends before it begins
    is_there = has_stages(costs, np.full(costs.shape, 2), SHAPES, 2)
    assert np.isfinite(chosen(told_apart(costs))) == is_there


def test_costs_are_told_apart_by_hardly_more_than_a_microsecond() -> None:
    costs = np.array([0.0, 1e-9, 3.3e-4, 1.0, np.inf])
    apart = told_apart(costs)
    assert (apart[:-1] >= costs[:-1]).all()
    np.testing.assert_allclose(apart[:-1], costs[:-1], rtol=0, atol=1.01e-6)
    assert np.isinf(apart[-1])


def result(available: int, size: int = MIB) -> StageProfileResult:
    """Of a stage that takes a batch of `size` bytes, and keeps it until its backward pass."""
    made = StageProfileResult(2, (), ())
    for part, (inputs, outputs) in enumerate([(("x",), ("y",)), (("x", "y"), ("z",))]):
        made.add_module_profile_result(
            part,
            ModuleProfileResult(
                1.0, size, 0, inputs, outputs, (size,) * len(inputs), (size,), (False,) * len(inputs), (), (), available
            ),
        )
    return made


def interpret(results: dict[Any, Any], run: StageRun) -> Any:
    with started(run):
        return stage_profiling.interpret_profile_result_training_2d(results, 2, 1, 1)


def test_results_that_allow_stages_are_what_alpa_makes_of_them() -> None:
    results = {(0, 0, 0, 0): result(100 * MIB), (1, 1, 0, 0): result(100 * MIB)}
    costs, followers = interpret(results, StageRun(2, [(1, 1)]))
    assert costs[0, 0, 0, 0] == pytest.approx(2.0, abs=2e-6)
    assert np.isinf(costs[0, 1, 0, 0])
    assert followers[0, 0, 0, 0] > 1


def test_the_smallest_of_the_stages_that_do_not_fit_is_named_with_what_it_needs() -> None:
    results = {(0, 0, 0, 0): result(MIB), (1, 1, 0, 0): result(MIB, 2 * MIB)}
    with pytest.raises(errors.NoStagesError, match=r"2 candidate .* layers 0 to 0 on 1 x 1 devices, needs 5\.0 MiB of"):
        interpret(results, StageRun(2, [(1, 1)]))


def test_stages_that_fit_only_as_the_last_one_leave_no_room_for_micro_batches() -> None:
    results = {(0, 0, 0, 0): result(5 * MIB), (1, 1, 0, 0): result(5 * MIB)}
    with pytest.raises(errors.NoStagesError, match="but not together with the micro-batches that the stages after it"):
        interpret(results, StageRun(2, [(1, 1)]))


def test_submeshes_that_do_not_come_to_all_devices_and_an_imbalance_are_named() -> None:
    results = {(0, 0, 0, 0): result(100 * MIB), (1, 1, 0, 0): result(100 * MIB)}
    with pytest.raises(
        errors.NoStagesError, match=r"cannot come to all of the devices.*stage_imbalance_tolerance=0\.5"
    ):
        interpret(results, StageRun(4, [(1, 1)], imbalance=0.5))


@pytest.mark.parametrize("write", [lambda results, file: np.save(file, results), pickle.dump])
def test_results_are_read_as_alpa_writes_them_and_as_it_reads_them(write: Any) -> None:
    file = io.BytesIO()
    write({(0, 0, 0, 0): 1.5}, file)
    file.seek(0)
    assert data_pickles.load(file) == {(0, 0, 0, 0): 1.5}


def test_the_devices_of_a_host_are_halved_and_so_must_be_a_power_of_two() -> None:
    mesh = SimpleNamespace(num_hosts=1, num_devices_per_host=3)
    with pytest.raises(errors.StageOptionError, match="halves the devices of a host, of which there are 3"):
        stage_checks._shapes(mesh, AutoStageOption())
    mesh.num_devices_per_host = 2
    assert stage_checks._shapes(mesh, AutoStageOption()) == [(1, 1), (1, 2)]
