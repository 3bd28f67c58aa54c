"""What breaks while Alpa chooses stages by their times: it goes on without what is lost, or ends with a reason.

Each test holds that nothing is left on the cluster then. `docs/faults.md` has the messages.
"""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from alpa.device_mesh import get_global_cluster
from alpa.global_env import global_config
from alpa.pipeline_parallel import stage_profiling

from alpa_on_jax import errors
from alpa_on_jax.alpa.pipeline_parallel import stage_workers
from alpa_on_jax.ray_mesh.cluster.hosts import CPU_DEVICE
from integration.stages import ask, choose_stages, costs_of_stages, held, wait_until_clean

# Asks a worker that has nothing to do yet; gives what happens when it has.
Fault = Callable[[Any], Callable[[], None]]


@pytest.fixture(scope="module")
def one_host(cluster: Any) -> Iterator[None]:
    """Alpa on one host, which is the only submesh: of two layers, each is timed by itself."""
    with held(1):
        yield


@pytest.fixture(autouse=True)
def folder(one_host: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_folder: str) -> Iterator[Path]:
    """Where alpa writes what it measured. After the test, nothing but the devices is held."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    wait_until_clean(ray_folder)


def choose() -> np.ndarray:
    """Alpa's table of the costs of layers i to j."""
    return costs_of_stages(layer_profile_mode="individual")


def break_at(monkeypatch: pytest.MonkeyPatch, what: str, number: Any, fault: Fault, times: int = 1) -> None:
    """Let `fault` happen to the worker that is given the piece of work of this number, which it is at then."""
    original, left = getattr(stage_workers, what), [times]

    def breaking(task: Any, *rest: Any) -> Any:
        if task != number or not left[0]:
            return original(task, *rest)
        left[0] -= 1
        happen = fault(rest[-1])
        answer = original(task, *rest)
        happen()
        return answer

    monkeypatch.setattr(stage_workers, what, breaking)


def killed(worker: Any) -> Callable[[], None]:
    pid = ask(worker, lambda _: os.getpid())
    return lambda: os.kill(pid, signal.SIGKILL)


def host_killed(worker: Any) -> Callable[[], None]:
    (pid,) = ask(worker, lambda profiler: ray.get([host.check_alive.remote() for host in profiler.mesh.workers]))
    return lambda: os.kill(pid, signal.SIGKILL)


def test_what_a_killed_worker_compiled_is_compiled_again_and_stages_that_cannot_be_compiled_are_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiled = {}

    def profile_none(stages: Any, outputs: Any, *rest: Any) -> Any:
        compiled.update({stage[0][:2]: output for stage, output in zip(stages, outputs, strict=True)})
        return {}

    def fail(number: int, *rest: Any) -> Any:
        worker = rest[-1]
        if number == 0:  # What alpa's worker answers where the ILP has no solution.
            return worker.__ray_call__.remote(lambda _: (0, None))
        return worker.__ray_call__.remote(lambda _: 1 / 0) if number == 1 else compile_(number, *rest)

    compile_ = stage_workers._compile
    monkeypatch.setattr(stage_workers, "_compile", fail)
    break_at(monkeypatch, "_compile", 2, killed)
    monkeypatch.setattr(stage_profiling, "profile_all", profile_none)
    with pytest.raises(errors.NoStagesError, match=r"finds no stages for 2 layers on 2 devices, .* layer 0 on"):
        choose_stages(manually_specified_submeshes=((1, 1),))
    assert compiled[0, 0] is None
    assert compiled[0, 1] is None
    assert compiled[1, 1] is not None
    found = "\n".join(caplog.messages)
    assert "stages are chosen without a candidate, layer 0 on a 1 x 1 mesh: no plan was found for it" in found
    assert "a candidate, layers 0 to 1 on a 1 x 1 mesh: division by zero" in found
    assert "a process that compiles was lost: it has ended: killed, out of memory, or a crash" in found


def test_a_host_that_is_killed_while_a_stage_is_timed_is_replaced_and_the_stage_timed_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    break_at(monkeypatch, "_profile", (0, 1), host_killed)
    costs = choose()
    assert np.isfinite(costs[np.triu_indices(2)]).all()
    # Each of the three is rounded up to the microsecond.
    np.testing.assert_allclose(costs[0, 1], costs[0, 0] + costs[1, 1], rtol=0, atol=1.1e-6)
    found = "\n".join(caplog.messages)
    assert "a process that times stages was lost: the mesh on" in found
    assert "What it was at is done again" in found


def test_a_stage_at_which_each_worker_is_killed_is_left_out_and_the_others_are_timed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_at(monkeypatch, "_profile", (0, 0), killed, times=2)
    with pytest.raises(
        errors.NoStagesError, match=r"1 candidate stages could not be .* layer 0 on a 1 x 2 mesh: it has ended"
    ):
        choose()
    (file,) = folder.iterdir()
    assert list(np.load(file, allow_pickle=True).item()) == [(1, 0, 0)]


def test_a_submesh_that_cannot_be_made_ends_in_the_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = stage_workers._start_profiling

    def start_elsewhere(ray: Any, kind: type, mesh: Any, group: Any) -> Any:
        mesh.host_info = [info | {"NodeID": "gone"} for info in mesh.host_info]
        return start(ray, kind, mesh, group)

    monkeypatch.setattr(stage_workers, "_start_profiling", start_elsewhere)
    with pytest.raises(errors.NoStagesError, match=r"no process that times stages could be started: .* has left the"):
        choose()
    assert any(" could not be started: " in message and "0 others go on" in message for message in caplog.messages)


# What is found without measuring.


def test_devices_that_a_mesh_has_are_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_config, "host_limits", replace(global_config.host_limits, reserve_s=0.5))

    class Holder:
        pass

    group = get_global_cluster().placement_group
    actor = ray.remote(num_cpus=0, resources={CPU_DEVICE: 1})(Holder).options(placement_group=group).remote()
    try:
        ray.get(actor.__ray_ready__.remote())
        with pytest.raises(errors.ClusterResourcesError, match=r"of which only 1 were free within 0\.5 s"):
            choose()
    finally:
        ray.kill(actor)


@pytest.mark.parametrize(
    ("option", "error", "message"),
    [
        ({"use_hlo_cost_model": True}, errors.NeedsForkError, "estimates stages by a cost model in Alpa's fork"),
        ({"manually_specified_submeshes": ((2, 2),)}, errors.StageOptionError, "a submesh of 2 x 2 devices cannot be"),
        ({"manually_specified_submeshes": None}, errors.StageOptionError, "=None is no list of submeshes"),
        (
            {"cached_profile_result": "none.npy"},
            errors.StageOptionError,
            "cannot be read as results of stages: .* No such file",
        ),
    ],
)
def test_options_that_cannot_be_met_are_refused_before_anything_is_started(
    option: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        choose_stages(**option)
