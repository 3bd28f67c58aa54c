"""A program that hangs, crashes or is killed in the process that measures costs itself only; its profile says why."""

import dataclasses
import pickle
import random
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import jax
import numpy as np
import pytest

from alpa_cfp.database import Profile, ProfileDatabase
from alpa_cfp.errors import ProfilingError
from alpa_cfp.profiling import MeasureOptions, Profiler
from alpa_cfp.profiling.process import setups, supervisor
from alpa_cfp.profiling.process.protocol import Finished
from alpa_cfp.profiling.queue import ProfilingQueue
from alpa_cfp.profiling.runners import SubprocessRunner
from alpa_cfp.spmd.compile.executable import Client
from alpa_cfp.spmd.distributed.host_place import HostPlace
from alpa_cfp.spmd.module.hlo_module import HloModule
from unit.alpa_cfp.profiling.programs import (
    X,
    crashing,
    hanging,
    linear_algebra,
    measure,
    oversized,
    product,
    scaled,
    uncompilable,
    worker_pid,
)

pytestmark = pytest.mark.slow

QUIET = MeasureOptions(samples=2, progress=False, isolated=True, run_limit_s=2.0)

# A worker that is sound until it measures, and then dies or waits.
_FAKE = """
import os, signal, time
from alpa_cfp.profiling.process import group, worker
from alpa_cfp.profiling.process.protocol import Started
def measure_group(modules, client, samples, rng, loaded, references):
    yield Started(0, {stage!r})
    {death}
group.measure_group = measure_group
worker.main()
"""


@pytest.fixture
def client() -> Client:
    return Client(jax.devices()[:8])


def measured(runner: SubprocessRunner, modules: Sequence[HloModule]) -> list[Finished]:
    """The programs of one group that are finished."""
    work: Any = ProfilingQueue(dict(enumerate(modules)), 2, len(modules), random.Random(0))  # pyright: ignore[reportArgumentType]
    group = work.take()
    assert group is not None
    return list(runner.measure_group(group))


def dying(client: Client, death: str, stage: str = "run", options: MeasureOptions = QUIET) -> Profile:
    """The profile that a program gets of which the process dies, or does not go on, in this way."""
    command = [sys.executable, "-c", _FAKE.format(stage=stage, death=death)]
    with closing(SubprocessRunner(client, options, command)) as worker:
        ((finished),) = measured(worker, [scaled(2)])
        assert worker_pid(worker.supervisor) is None  # it is over
    return finished.profile


def test_a_group_with_every_way_to_fail_in_it_is_measured_but_for_these(client: Client) -> None:
    modules = [scaled(2), hanging(), oversized(), crashing(), uncompilable(), scaled(3)]
    database = ProfileDatabase.in_memory()
    profiles = measure(modules, client, database, QUIET)
    assert [profile.failure for profile in profiles] == [
        None, "timed_out", "out_of_memory", "crashed", "compile_failed", None
    ]  # fmt: skip
    reasons = ["", "run_limit_s=2", "RESOURCE_EXHAUSTED", "SIGSEGV", "nobody_has_this", ""]
    for profile, reason in zip(profiles, reasons, strict=True):
        assert reason in profile.failure_message
    assert [len(profile.samples_s) for profile in profiles] == [2, 0, 0, 0, 0, 2]
    # It is known now, and not tried again: a second attempt would hang for two seconds more, and change the times.
    assert measure(modules, client, database, QUIET) == profiles


def test_linear_algebra_is_measured_in_a_process_that_has_lowered_none(client: Client) -> None:
    # JAX tells jaxlib where LAPACK is when it lowers such an op. This process has, the one that measures has not.
    profiles = measure(linear_algebra(), client, ProfileDatabase.in_memory(), QUIET)
    assert {profile.failure_message for profile in profiles} == {""}
    assert {profile.status for profile in profiles} == {"measured"}


@pytest.mark.parametrize(
    ("death", "failure", "message"),
    [
        ("os.abort()", "crashed", "SIGABRT"),
        ("os._exit(3)", "crashed", "exit code 3"),
        ("raise ValueError('broken')", "crashed", "ValueError: broken"),
        ("raise MemoryError", "out_of_memory", "MemoryError"),
    ],
)
def test_a_profile_says_how_the_process_died(client: Client, death: str, failure: str, message: str) -> None:
    profile = dying(client, death)
    assert (profile.status, profile.failure) == ("failed", failure)
    assert message in profile.failure_message


@pytest.mark.parametrize(
    ("kills", "failure", "is_permanent"), [((3, 4), "out_of_memory", True), ((3, 3), "crashed", False)]
)
def test_a_process_that_is_killed_tells_of_its_program_for_good_only_if_memory_was_short(
    client: Client, monkeypatch: pytest.MonkeyPatch, kills: tuple[int, int], failure: str, is_permanent: bool
) -> None:
    before, after = kills
    # Counted before the compilation, before the runs, and at the end.
    monkeypatch.setattr(supervisor, "_out_of_memory_kills", iter([before, before, after]).__next__)
    command = [sys.executable, "-c", _FAKE.format(stage="run", death="os.kill(os.getpid(), signal.SIGKILL)")]
    with closing(SubprocessRunner(client, QUIET, command)) as worker:
        ((finished),) = measured(worker, [scaled(2)])
    assert (finished.profile.failure, finished.is_permanent) == (failure, is_permanent)
    assert "SIGKILL" in finished.profile.failure_message


def test_what_was_killed_from_outside_is_left_out_for_now_and_measured_by_the_next_profiler(client: Client) -> None:
    options, database = dataclasses.replace(QUIET, group=1), ProfileDatabase.in_memory()
    killed = [sys.executable, "-c", _FAKE.format(stage="run", death="os.kill(os.getpid(), signal.SIGKILL)")]
    with Profiler(client, database, options) as profiler:
        profiler._measurer = SubprocessRunner(client, options, killed)
        before = profiler.measure([scaled(2)])
        assert profiler.measure([scaled(2)]) == before
    assert [profile.status for profile in before] == ["failed"]
    assert database.keys() == []
    assert [profile.status for profile in measure([scaled(2)], client, database, options)] == ["measured"]


def test_a_program_at_which_the_compiler_dies_beside_others_is_found(client: Client) -> None:
    # All are begun before the one that is bad kills the process.
    code = """
import os, threading
from alpa_cfp.profiling.process import group, worker
group.cores = worker.cores = lambda: 4
begun = threading.Barrier(3)
original = group.MeshExecutable
def compiled(client, module):
    if not begun.broken:
        try:
            begun.wait(1)
        except threading.BrokenBarrierError:
            pass
    if "bad" in module.name:
        os.abort()
    return original(client, module)
group.MeshExecutable = compiled
worker.main()
"""
    modules = [scaled(2), product(name="bad"), scaled(3)]
    profiles: dict[int, Profile] = {}
    options = dataclasses.replace(QUIET, run_limit_s=20.0)
    with closing(SubprocessRunner(client, options, [sys.executable, "-c", code])) as worker:
        left = dict(enumerate(modules))
        while left:
            numbers = list(left)
            for finished in measured(worker, list(left.values())):
                profiles[numbers[finished.index]] = finished.profile
                del left[numbers[finished.index]]
    assert [profiles[number].failure for number in range(3)] == [None, "crashed", None]
    assert "while this program was being compiled: SIGABRT" in profiles[1].failure_message


def test_a_program_that_takes_too_long_to_compile_is_given_up(client: Client) -> None:
    options = dataclasses.replace(QUIET, compile_limit_s=0.5)
    profile = dying(client, "time.sleep(1000)", "compile", options)
    assert profile.failure == "timed_out"
    assert "being compiled after compile_limit_s=0.5" in profile.failure_message


def test_a_process_that_is_killed_while_it_has_nothing_to_do_costs_nothing(client: Client) -> None:
    with closing(SubprocessRunner(client, QUIET)) as worker:
        worker.start()
        first = worker_pid(worker.supervisor)
        assert worker.supervisor._process is not None
        worker.supervisor._process.kill()
        worker.supervisor._process.wait()
        ((finished),) = measured(worker, [scaled(2)])
        assert finished.profile.status == "measured"
        assert worker_pid(worker.supervisor) not in (first, None)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["/nowhere/python"], "/nowhere/python"),
        ([sys.executable, "-c", "raise SystemExit('no such module')"], "no such module"),
    ],
)
def test_a_process_that_cannot_be_started_is_an_error_with_its_reason(
    client: Client, command: Sequence[str], reason: str
) -> None:
    worker = SubprocessRunner(client, QUIET, command)
    with pytest.raises(ProfilingError, match=reason):
        worker.start()
    assert worker_pid(worker.supervisor) is None


def test_a_process_that_dies_before_its_first_program_is_an_error(client: Client) -> None:
    code = "from alpa_cfp.profiling.process import group, worker; group.measure_group = lambda *_: 1 / 0; worker.main()"
    command = [sys.executable, "-c", code]
    with (
        closing(SubprocessRunner(client, QUIET, command)) as worker,
        pytest.raises(ProfilingError, match="Zero"),
    ):
        measured(worker, [scaled(2)])


def test_a_process_that_does_not_begin_with_its_first_program_is_an_error(client: Client) -> None:
    code = (
        "import time; from alpa_cfp.profiling.process import group, worker; "
        "group.measure_group = lambda *_: time.sleep(1e3)"
    )
    options = dataclasses.replace(QUIET, run_limit_s=0.5)
    worker = SubprocessRunner(client, options, [sys.executable, "-c", f"{code}; worker.main()"])
    with closing(worker), pytest.raises(ProfilingError, match=r"it has not begun for 0\.5 s"):
        measured(worker, [scaled(2)])
    assert worker_pid(worker.supervisor) is None


@dataclasses.dataclass(frozen=True)
class _Device:
    id: int
    process_index: int = 0
    platform: str = "cpu"
    device_kind: str = "cpu"


@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        ([_Device(99)], r"none with the ids \[99\]"),
        ([_Device(0, device_kind="faster")], "faster"),
        ([_Device(0), _Device(2048, process_index=1)], "several processes"),
    ],
)
def test_a_process_without_the_devices_of_the_mesh_is_refused(devices: Any, reason: str) -> None:
    with (
        closing(SubprocessRunner(Client(devices), QUIET)) as worker,
        pytest.raises(ProfilingError, match=reason),
    ):
        worker.start()


def test_the_process_has_the_settings_of_jax_that_this_one_has(client: Client) -> None:
    # Without them, the arrays of zeros that it runs programs on would be float32.
    with jax.enable_x64(True):
        module = scaled(2, np.float64)
        (profile,) = measure([module], client, ProfileDatabase.in_memory(), QUIET)
    assert profile.failure_message == ""
    assert profile.argument_bytes == 2 * X.nbytes


def test_the_process_is_another_one_when_the_settings_of_jax_have_changed(client: Client) -> None:
    with closing(SubprocessRunner(client, QUIET)) as worker:
        worker.start()
        first = worker_pid(worker.supervisor)
        worker.start()
        assert worker_pid(worker.supervisor) == first
        with jax.enable_x64(True):
            worker.start()
        assert worker_pid(worker.supervisor) != first


def test_programs_can_be_measured_in_any_thread(client: Client) -> None:
    profiles: list[Profile] = []

    def run() -> None:
        profiles.extend(measure([product()], client, ProfileDatabase.in_memory(), QUIET))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert [profile.status for profile in profiles] == ["measured"]


def test_the_platform_of_this_process_is_not_that_of_the_one_that_measures() -> None:
    before = jax.config.values["jax_platform_name"]
    try:
        jax.config.update("jax_platform_name", "cpu")  # as on a cluster of GPUs, where the driver computes on its CPU
        assert not {"jax_platforms", "jax_platform_name"} & set(setups.jax_config())
    finally:
        jax.config.update("jax_platform_name", before)


def test_who_passes_a_setup_on_does_not_import_jax(client: Client) -> None:
    place = HostPlace("127.0.0.1:1", 1, 0, "127.0.0.1", "cpu", 1, False, 1.0, 1.0, 1.0)
    setup = dataclasses.replace(setups.setup_of(client), place=place)
    code = "import pickle, sys; pickle.load(sys.stdin.buffer); print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(setup), capture_output=True, check=True)
    assert done.stdout == b"False\n"


def test_a_setting_of_jax_that_is_an_enum_is_the_same_in_the_process_that_measures() -> None:
    with jax.numpy_dtype_promotion("strict"):
        settings = setups.jax_config()
    before = jax.config.values["jax_numpy_dtype_promotion"]
    try:
        setups.set_up_jax(settings)
        assert jax.config.values["jax_numpy_dtype_promotion"].value == "strict"
    finally:
        jax.config.update("jax_numpy_dtype_promotion", before)
