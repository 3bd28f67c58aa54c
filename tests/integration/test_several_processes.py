"""`autoshard` in JAX processes that Ray did not start: one plans, all measure, all run by the same plan."""

import json
import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from alpa_cfp import Plan
from alpa_cfp.database import ProfileDatabase
from integration import program_of_processes
from integration.jax_processes import Ended, free_port, run_commands, run_processes
from integration.serial import assert_equal_up_to_rounding

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("several JAX processes")]

PROGRAM = Path(program_of_processes.__file__)
EXAMPLE = Path(__file__).parents[2] / "examples" / "several_processes.py"
# Processes and devices of each.
MEASURED = [(2, 2), (4, 1)]
ESTIMATED = [(2, 4), (4, 2)]


def found(folder: Path, count: int, devices: int, what: str, ends: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """What each process that comes to its end leaves; `ends` are the codes of the others, by signal."""
    ended = run_processes(PROGRAM, folder, count, devices, what)
    codes = [each.code for each in ended]
    assert sorted(codes) == sorted([*ends, *[0] * (count - len(ends))]), "\n".join(each.output for each in ended)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank, code in enumerate(codes) if code == 0]


class Run:
    """What a run of the program left."""

    def __init__(self, count: int, devices: int, what: str) -> None:
        self._folder = TemporaryDirectory()
        self.folder = Path(self._folder.name)
        self.found = found(self.folder, count, devices, what)
        self.values = [dict(np.load(self.folder / f"{rank}.npz")) for rank in range(count)]


@cache
def run_of(count: int, devices: int, what: str) -> Run:
    return Run(count, devices, what)


@cache
def serial() -> dict[str, np.ndarray]:
    """The losses and the last parameters of the same steps on one device."""
    params, x = program_of_processes.start()
    losses = []
    for _ in range(program_of_processes.NUM_STEPS):
        params, loss = jax.jit(program_of_processes.train_step)(params, x)
        losses.append(loss)
    return {"loss": np.array(losses)} | {name: np.asarray(value) for name, value in params.items()}


def assert_steps_equal_the_serial_ones(run: Run, prefix: str) -> None:
    for values in run.values:
        assert_equal_up_to_rounding({name: values[prefix + name] for name in serial()}, serial())


@pytest.mark.parametrize(("count", "devices"), MEASURED)
@pytest.mark.parametrize("costs", ["estimate", "measure", "replay", "given"])
def test_all_processes_get_the_same_plan(count: int, devices: int, costs: str) -> None:
    assert len({of[costs] for of in run_of(count, devices, "plans").found}) == 1


@pytest.mark.parametrize(("count", "devices"), MEASURED)
def test_a_plan_is_measured_on_the_devices_of_all_processes(count: int, devices: int) -> None:
    run = run_of(count, devices, "plans")
    assert (Plan.from_json(run.found[0]["measure"]).measured_s or 0) > 0
    with ProfileDatabase.open(run.folder / "0.sqlite", readonly=True) as database:
        measured = [key for key, profile in database.items() if profile.status == "measured"]
    assert {key.hosts for key in measured} == {"+".join([str(devices)] * count)}


@pytest.mark.parametrize(("count", "devices"), MEASURED)
def test_only_the_process_that_plans_has_a_profile_database(count: int, devices: int) -> None:
    assert run_of(count, devices, "plans").found[-1]["databases"] == ["0.sqlite"]


@pytest.mark.parametrize(("count", "devices"), MEASURED)
def test_replayed_profiles_give_the_plan_that_was_measured(count: int, devices: int) -> None:
    measured, replayed = (Plan.from_json(run_of(count, devices, "plans").found[0][by]) for by in ("measure", "replay"))
    assert (replayed.costs, replayed.strategies) == ("replay", measured.strategies)


@pytest.mark.parametrize(("count", "devices"), MEASURED)
@pytest.mark.parametrize("plan", ["planned", "loaded", "estimated"])
def test_two_training_steps_on_global_arrays_equal_the_serial_run(count: int, devices: int, plan: str) -> None:
    assert_steps_equal_the_serial_ones(run_of(count, devices, "plans"), f"{plan}-")


@pytest.mark.parametrize(("count", "devices"), ESTIMATED)
def test_steps_with_split_parameters_equal_the_serial_run(count: int, devices: int) -> None:
    run = run_of(count, devices, "estimates")
    (text,) = {of["estimate"] for of in run.found}
    split = {path for path, spec in Plan.from_json(text).in_shardings.items() if spec != PartitionSpec()}
    assert {"args[0]['up']", "args[0]['down']"} <= split
    assert_steps_equal_the_serial_ones(run, "")


@pytest.mark.parametrize("what", ["across", "in_processes"])
def test_a_mesh_may_have_two_axes_and_its_devices_in_any_order(what: str) -> None:
    run = run_of(2, 2, what)
    plan = Plan.from_json(run.found[0]["measure"])
    assert plan.signature is not None
    # JAX numbers those of the second process from 2048.
    assert [device >= 2048 for device in plan.signature.devices] == [False, True] * 2
    assert_steps_equal_the_serial_ones(run, "")


def test_processes_whose_memory_is_their_own_measure_themselves() -> None:
    first, second = (of["measure"] for of in run_of(2, 2, "in_processes").found)
    assert first == second
    assert (Plan.from_json(first).measured_s or 0) > 0


def test_a_worker_that_is_killed_is_replaced_and_planning_goes_on(tmp_path: Path) -> None:
    first, second = (of["measure"] for of in found(tmp_path, 2, 1, "worker_killed"))
    assert first == second
    assert "a mesh was lost while it measured: host process 1: " in (tmp_path / "output-0.txt").read_text()


def test_where_a_process_dies_while_it_measures_all_others_get_an_error_that_names_it(tmp_path: Path) -> None:
    others = found(tmp_path, 3, 1, "dies", ends=(-9,))
    assert len(others) == 2
    for of in others:
        assert of["says"].startswith("ProcessesError: process 1 was lost while the processes planned together")


@cache
def mistakes() -> list[dict[str, dict[str, Any]]]:
    """What each of two processes says of what cannot be planned; the same processes plan all of it."""
    with TemporaryDirectory() as folder:
        return found(Path(folder), 2, 2, "mistakes")


def said(of: str) -> list[str]:
    return [each[of]["says"] for each in mistakes()]


def test_different_functions_are_an_error_that_names_the_process() -> None:
    for says in said("other_function"):
        assert says.startswith(
            "ProcessesError: the processes do not plan the same as process 0: process 1 has another program. "
        )


def test_an_error_of_the_function_in_one_process_ends_planning_in_all() -> None:
    first, second = said("raises")
    assert second == "ZeroDivisionError: the function's own error"
    assert first == f"ProcessesError: planning ended in process 1, and so in all of the mesh: {second}"


def test_an_error_of_planning_is_the_same_one_in_all_processes() -> None:
    first, second = said("no_memory")
    assert first == second
    assert first.startswith("MemoryBudgetError: ")


def test_values_of_one_process_are_taken_as_jax_jit_takes_them() -> None:
    for of in mistakes():
        np.testing.assert_allclose(of["own_values"]["loss"], serial()["loss"][0], rtol=1e-5)
    for says in said("own_values"):
        assert says.startswith("PlanError: args[")
        assert "of this process alone, and is split over several processes" in says


def test_a_process_that_does_not_call_autoshard_is_an_error_after_a_while(tmp_path: Path) -> None:
    first, _ = (of["says"] for of in found(tmp_path, 2, 1, "stays_away"))
    assert first.startswith("ProcessesError: the mesh has devices of the processes 0, 1, and of these 1 did not ")


def test_the_example_gives_the_losses_of_one_device_where_slurm_starts_it(tmp_path: Path) -> None:
    # JAX takes the coordinator's port from the job's number.
    port = free_port(range(61440, 65536))
    job = {"SLURM_JOB_ID": str(port - 61440), "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
    environments = [job | {"SLURM_PROCID": rank, "SLURM_LOCALID": rank} for rank in ("0", "1")]
    command = [str(EXAMPLE), "--costs", "estimate"]
    first, second = run_commands([command] * 2, tmp_path, 2, environments)
    assert (first.code, second.code) == (0, 0), first.output + second.output
    assert "'args[1]': P('devices',)" in first.output
    alone = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", "1", "--process", "0"]
    (serial,) = run_commands([[*command, *alone]], tmp_path, 1, [{}])
    assert len(losses(serial)) == 5
    for each in (first, second):
        np.testing.assert_allclose(losses(each), losses(serial), rtol=1e-5)


def losses(ended: Ended) -> list[float]:
    return [float(loss) for loss in re.findall(r"^process \d of \d: loss (\S+)$", ended.output, re.MULTILINE)]
