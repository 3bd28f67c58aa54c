"""What is broken off and started again loses no finished measurement and repeats none; nothing is left behind."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from alpa_cfp.database import ProfileDatabase
from alpa_cfp.profiling import MeasureOptions
from alpa_cfp.spmd.compile.executable import Client
from unit.alpa_cfp.profiling.programs import hanging, measure, scaled

pytestmark = pytest.mark.slow

# As users write scripts: it measures at the top level, without asking whether it is the main module.
_SCRIPT = """
import signal
import sys
import jax
from alpa_cfp.database import ProfileDatabase
from alpa_cfp.profiling import MeasureOptions, Profiler
from alpa_cfp.spmd.compile.executable import Client
from unit.alpa_cfp.profiling.programs import hanging, scaled, worker_pid_of

# A shell lets what it starts in the background ignore Ctrl-C, and that is inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)

class Telling(ProfileDatabase):
    def put(self, key, profile, **others):
        super().put(key, profile, **others)
        print("kept", worker_pid_of(profiler), flush=True)

with Telling.open(sys.argv[1]) as database:
    options = MeasureOptions(samples=2, group=2, progress=False)
    profiler = Profiler(Client(jax.devices()[:8]), database, options)
    with profiler:
        profiler.measure([scaled(1.5), scaled(2), scaled(3), scaled(4), hanging(), scaled(5)])
"""
_DEADLINE_S = 60


def start(script: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    tests = Path(__file__).parents[3]
    paths = os.pathsep.join([str(tests), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ends(descriptor: int) -> bool:
    """Whether the process of a pidfd ends."""
    ended, _, _ = select.select([descriptor], [], [], _DEADLINE_S)
    os.close(descriptor)
    return bool(ended)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for a process that is not its child, as Linux can")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_killed_in_the_middle_goes_on_where_it_was(tmp_path: Path, how: signal.Signals) -> None:
    path = tmp_path / "profiles.sqlite"
    with start(_SCRIPT, str(path)) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(4)]
        worker = os.pidfd_open(int(told[-1].split()[1]))
        # It now waits for the program that hangs, with another one loaded beside it.
        process.send_signal(how)
        _, errors = process.communicate(timeout=_DEADLINE_S)
    assert process.returncode != 0
    assert ("KeyboardInterrupt" in errors) == (how == signal.SIGINT)
    assert ends(worker)

    with ProfileDatabase.open(path) as database:
        before = {key: database.sessions(key) for key in database.keys()}  # noqa: SIM118
        assert sorted(map(len, before.values())) == [1, 1, 1, 1]
        modules = [scaled(1.5), scaled(2), scaled(3), scaled(4), hanging(), scaled(5)]
        options = MeasureOptions(samples=2, group=2, progress=False, run_limit_s=2)
        profiles = measure(modules, Client(jax.devices()[:8]), database, options)
        assert [profile.failure for profile in profiles] == [None] * 4 + ["timed_out", None]
        after = {key: database.sessions(key) for key in database.keys()}  # noqa: SIM118
    assert {key: after[key] for key in before} == before
    assert len(after) == 6


def test_a_script_without_a_main_guard_can_measure_and_keeps_its_output_for_itself(tmp_path: Path) -> None:
    script = """
import jax, logging, sys
logging.basicConfig(level=logging.WARNING)
jax.config.update("jax_num_cpu_devices", 8)  # the other process must know it too
from alpa_cfp.database import ProfileDatabase
from alpa_cfp.profiling import MeasureOptions
from alpa_cfp.spmd.compile.executable import Client
from unit.alpa_cfp.profiling.programs import measure, scaled

print("before")
options = MeasureOptions(samples=1, progress=False, isolated=True)
(profile,) = measure([scaled(2)], Client(jax.devices()), ProfileDatabase.in_memory(), options)
print(profile.status, len(jax.devices()))
"""
    with start(script, XLA_FLAGS="") as process:
        output, errors = process.communicate(timeout=_DEADLINE_S)
    assert output == "before\nmeasured 8\n"
    assert errors == ""
