"""`alpa-cfp doctor`: what it says of things that are right, odd, wrong, missing, crashing and hanging."""

import base64
import hashlib
import importlib.metadata
import json
import os
import sqlite3
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from alpa_cfp.cli import doctor
from alpa_cfp.cli.main import main
from alpa_cfp.database import ProfileDatabase
from alpa_cfp.doctor import Finding, examination, installation, machine, probing, profiles, tested
from alpa_cfp.doctor.probing import Answer
from alpa_on_jax import versions
from unit.alpa_cfp.database.profiles import failed, key_of, make_database, measured

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
JAX = versions.TESTED_JAX_VERSIONS[0]
CHECKS = [
    "Python", "JAX", "alpa", "import alpa", "flax", "optax", "numpy", "devices", "ILP solver", "profiles",
    "Ray",
]  # fmt: skip
WELL = {"hook": {"runs": True}, **{name: {"version": "1"} for name in ("jax", "alpa", "flax", "optax", "numpy", "ray")}}
Versions = Callable[..., None]
Fake = Callable[[str, str], None]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Versions:
    """Says which versions are installed: `installed(jax="0.9")`, None for a package that is not."""

    def install(**given: str | None) -> None:
        monkeypatch.setattr(versions, "installed_version", given.get)

    return install


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Makes a module that new processes import in the place of the installed one: `fake("ray", "1 / 0")`."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))

    def make(name: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text(source)

    return make


def seeing(*devices: tuple[str, str, int | None]) -> Answer:
    """An answer of a JAX that sees these devices: platform, kind, memory."""
    found = [dict(zip(("platform", "kind", "memory_bytes"), device, strict=True)) for device in devices]
    return Answer({**WELL, "devices": {"devices": found}})


def without(subject: str, error: str) -> Answer:
    """An answer in which one subject failed."""
    return Answer({**WELL, subject: {"error": error}})


def asked(name: str, timeout_s: float = 60.0) -> Answer:
    with probing.started([name], timeout_s) as probes:
        return probes.answer(name)


def test_this_environment_has_no_problem(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALPA_CFP_DATABASE", str(tmp_path / "none.sqlite"))
    code = main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    checks = {check["check"]: check for check in report["checks"]}
    assert list(checks) == CHECKS
    assert [check for check in report["checks"] if check["status"] == "problem"] == []
    assert (code, report["ok"]) == (0, True)
    assert checks["JAX"]["details"]["jax"] == importlib.metadata.version("jax")
    assert checks["alpa"]["found"] == "0.2.3, every file as on PyPI"
    assert checks["import alpa"]["found"].startswith("works")
    assert "solves" in checks["ILP solver"]["found"]
    assert sum(device["count"] for device in checks["devices"]["details"]["devices"]) >= 1
    assert not (tmp_path / "none.sqlite").exists()


def test_an_installation_without_alpa_has_no_problem(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip install .` alone is for plain JAX, and the exit code says that all is well."""
    monkeypatch.setenv("ALPA_CFP_DATABASE", str(tmp_path / "none.sqlite"))
    real = versions.installed_version
    monkeypatch.setattr(
        versions, "installed_version", lambda name: None if name in {"alpa", *tested.OF_ALPA} else real(name)
    )
    assert main(["doctor", "--json"]) == 0
    checks = {check["check"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    for name in ("alpa", "flax", "optax", "ILP solver", "Ray"):
        assert checks[name]["status"] == "note"
        assert "pip install '.[alpa]'" in checks[name]["fix"]


def test_a_problem_is_printed_with_its_fix_and_gives_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        Finding("JAX", "problem", "jax 0.3", "pip install jax"),
        Finding("Ray", "note", "it is not installed"),
        Finding("alpa", "ok", "0.2.3"),
    ]
    monkeypatch.setattr(doctor, "findings", lambda *_, **__: iter(found))
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["problem", "JAX", "jax", "0.3"]
    assert lines[1].strip() == "fix: pip install jax"
    assert lines[-1].endswith(": 1 problem, 1 note")


def test_notes_alone_give_exit_code_0(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "findings", lambda *_, **__: iter([Finding("Ray", "note", "it is not installed")]))
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_a_problem_without_a_fix_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="a problem needs a fix"):
        Finding("JAX", "problem", "jax 0.3")


def test_a_check_that_breaks_is_a_problem_of_its_own() -> None:
    def breaks() -> Finding:
        raise RecursionError("too deep")

    finding = examination._checked("devices", breaks)
    assert (finding.check, finding.status) == ("devices", "problem")
    assert "RecursionError: too deep" in finding.found


def test_the_tested_versions_are_those_of_the_requirements() -> None:
    for number, python in enumerate(tested.TESTED_PYTHONS):
        lines = (ROOT / f"requirements/py{python.replace('.', '')}.txt").read_text().lower().splitlines()
        pinned = dict(line.split("==") for line in lines if "==" in line)
        assert {name: pinned[name] for name in tested.TESTED} == {
            name: known[number] for name, known in tested.TESTED.items()
        }
        assert pinned["jax"] == versions.TESTED_JAX_VERSIONS[number]


def test_the_needed_versions_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {*project["dependencies"], *project["optional-dependencies"]["alpa"]}
    assert set(tested.NEEDED.values()) <= needed


@pytest.mark.parametrize(
    ("name", "version", "known"),
    [
        ("flax", "0.12.8", "tested"),
        ("flax", "0.13.0", "untested"),
        ("flax", "0.12.8.post1", "untested"),
        ("flax", "0.9.9", "unsuitable"),
        ("numpy", "2", "untested"),
        ("numpy", "1.26.4", "unsuitable"),
        ("pulp", "4.0", "unsuitable"),
        ("pulp", "4.0.0a1", "unsuitable"),
    ],
)
def test_a_version_is_tested_untested_or_unsuitable(name: str, version: str, known: str) -> None:
    assert tested.how_known(name, version) == known


@pytest.mark.parametrize(
    ("jax", "jaxlib", "allow", "status"),
    [
        (JAX, JAX, "", "ok"),
        (JAX, versions.TESTED_JAX_VERSIONS[-1], "", "problem"),
        ("0.3.22", "0.3.22", "", "problem"),
        ("0.3.22", "0.3.22", "1", "note"),
        (None, None, "1", "problem"),
        (JAX, None, "1", "problem"),
    ],
)
def test_only_a_tested_pair_of_jax_and_jaxlib_is_fine(
    installed: Versions, monkeypatch: pytest.MonkeyPatch, jax: str | None, jaxlib: str | None, allow: str, status: str
) -> None:
    installed(jax=jax, jaxlib=jaxlib)
    monkeypatch.setenv(versions.ALLOW_UNTESTED_VARIABLE, allow)
    finding = installation.jax(Answer(WELL))
    assert finding.status == status
    assert finding.fix.startswith("pip install jax==") or status != "problem"


def test_a_jax_that_does_not_import_is_a_problem(installed: Versions) -> None:
    installed(jax=JAX, jaxlib=JAX)
    finding = installation.jax(without("jax", "ImportError: libfoo.so"))
    assert finding.status == "problem"
    assert "libfoo.so" in finding.found
    # pip leaves alone what has the right version, however broken it is.
    assert finding.fix.startswith("pip install --force-reinstall jax==")


def test_another_alpa_is_a_problem(installed: Versions) -> None:
    installed(alpa="0.2.2")
    finding = installation.alpa()
    assert (finding.status, finding.fix) == ("problem", "pip install --force-reinstall --no-deps alpa==0.2.3")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda file: None, "installed from elsewhere"),
        (lambda file: file.write_text("changed"), "alpa/api.py was changed"),
        (lambda file: file.unlink(), "alpa/api.py is missing"),
    ],
    ids=["another", "changed", "missing"],
)
def test_an_alpa_that_is_not_pypi_s_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], Any], said: str
) -> None:
    file, info = tmp_path / "alpa" / "api.py", tmp_path / "alpa-0.2.3.dist-info"
    file.parent.mkdir()
    info.mkdir()
    file.write_text("as it was")
    digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).decode().rstrip("=")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: alpa\nVersion: 0.2.3\n")
    (info / "RECORD").write_text(f"alpa/api.py,sha256={digest},9\nalpa-0.2.3.dist-info/RECORD,,\n")
    change(file)
    monkeypatch.syspath_prepend(tmp_path)
    finding = installation.alpa()
    assert finding.status == "problem"
    assert said in finding.found


def test_a_startup_file_that_does_not_run_is_a_problem() -> None:
    finding = installation.importing_alpa(Answer({"hook": {"runs": False}, "alpa": {"error": "ImportError: jax"}}))
    assert finding.status == "problem"
    assert "alpa_on_jax.pth" in finding.found


def test_an_alpa_that_does_not_import_is_a_problem_with_its_message() -> None:
    finding = installation.importing_alpa(without("alpa", "ImportError: no flax"))
    assert finding.status == "problem"
    assert "ImportError: no flax" in finding.found


@pytest.mark.parametrize(
    ("version", "answer", "status"),
    [
        ("0.12.8", Answer(WELL), "ok"),
        ("0.13.0", Answer(WELL), "note"),
        ("0.5.0", Answer(WELL), "problem"),
        (None, Answer(WELL), "problem"),
        ("0.12.8", without("flax", "AttributeError: core"), "problem"),
        ("0.12.8", Answer({}, "was killed by SIGSEGV"), "problem"),
    ],
)
def test_a_package_must_be_there_suitable_and_importable(
    installed: Versions, version: str | None, answer: Answer, status: str
) -> None:
    installed(flax=version, alpa="0.2.3")
    finding = installation.package("flax", answer)
    assert finding.status == status
    assert finding.fix.startswith(("pip install", "mend JAX")) or status != "problem"


def test_without_alpa_nothing_that_only_alpa_needs_is_a_problem(installed: Versions) -> None:
    """As after `pip install .`, which is enough for autoshard."""
    installed(jax=JAX, jaxlib=JAX, numpy="2.4.6")
    missing = Answer({"hook": {"runs": False}}, "ended with exit code 1")
    alpa = installation.alpa()
    needs = [installation.package("flax", missing), installation.package("optax", missing), machine.solver(missing)]
    needs.append(machine.ray(Answer(), None))
    assert {each.status for each in (alpa, installation.importing_alpa(missing), *needs)} == {"note"}
    assert all("pip install '.[alpa]'" in each.fix for each in (alpa, *needs))
    assert "alpa==0.2.3" in alpa.fix
    installed(numpy=None)
    assert installation.package("numpy", missing).status == "problem"


def test_a_package_that_fails_for_jax_is_mended_with_it(installed: Versions) -> None:
    installed(flax="0.12.8", numpy="2.4.6")
    broken = Answer({"jax": {"error": "ImportError: jaxlib"}, "flax": {"error": "ImportError: jaxlib"}})
    assert installation.package("flax", broken).fix == "mend JAX (see above)"
    # It does not need JAX.
    assert installation.package("numpy", broken).fix.startswith("pip install --force-reinstall numpy==")


@pytest.mark.parametrize(("python", "flax"), [((3, 11), "0.12.8"), ((3, 12), "0.12.12"), ((3, 13), "0.12.12")])
def test_what_is_installed_anew_is_the_version_tested_with_this_python(
    python: tuple[int, int], flax: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tested.sys, "version_info", python)
    assert tested.reinstalling("flax") == f"pip install --force-reinstall flax=={flax}"


@pytest.mark.parametrize(("python", "jax"), [((3, 11), "0.10.2"), ((3, 12), "0.11.2"), ((3, 13), "0.12.0.1")])
def test_the_jax_that_is_suggested_is_the_one_tested_with_this_python_or_the_newest(
    python: tuple[int, int], jax: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tested.sys, "version_info", python)
    assert tested.suitable_jax() == jax
    monkeypatch.setattr(tested.sys, "version_info", (3, 99))
    assert tested.suitable_jax() == "0.12.0.1"


def test_devices_are_counted_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.glob, "glob", lambda pattern: [])
    assert machine.devices(seeing(*[("cpu", "cpu", None)] * 8)).found.startswith("8 virtual CPU devices (on ")
    gpus = machine.devices(seeing(*[("gpu", "NVIDIA H100", 60 * 2**30)] * 4))
    assert (gpus.status, gpus.found) == ("ok", "4 x NVIDIA H100 (gpu, 60.0 GiB for JAX each)")


def test_one_device_is_worth_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.glob, "glob", lambda pattern: [])
    finding = machine.devices(seeing(("cpu", "cpu", None)))
    assert finding.status == "note"
    assert "XLA_FLAGS=--xla_force_host_platform_device_count=8" in finding.found


@pytest.mark.parametrize(("platforms", "status"), [("", "problem"), ("cpu", "ok")])
def test_a_gpu_that_jax_does_not_see_is_a_problem_unless_it_was_told_not_to(
    monkeypatch: pytest.MonkeyPatch, platforms: str, status: str
) -> None:
    monkeypatch.setattr(machine.glob, "glob", lambda pattern: ["/dev/nvidia0"])
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert machine.devices(seeing(*[("cpu", "cpu", None)] * 8)).status == status


def test_a_platform_that_jax_cannot_start_names_the_variable_that_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    finding = machine.devices(without("devices", "RuntimeError: Unable to initialize backend 'cuda'"))
    assert finding.status == "problem"
    assert "JAX_PLATFORMS is 'cuda'" in finding.fix


def test_a_flag_that_xla_does_not_know_is_named_and_only_the_devices_suffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1")
    answer = asked("jax")  # XLA ends the process
    assert [answer.error(name) for name in ("jax", "flax", "optax", "numpy")] == [""] * 4
    finding = machine.devices(answer)
    assert finding.status == "problem"
    assert finding.found.endswith("Unknown flag in XLA_FLAGS: --xla_no_such_flag=1")
    assert finding.fix.startswith("XLA_FLAGS is '--xla_no_such_flag=1': unset it")


def test_the_last_words_of_a_process_are_those_that_say_why() -> None:
    place = "1122 08:53:05.944016   30103"
    fatal = f"F{place} parse_flags_from_env.cc:220] Check failed: Flag parsing failed."
    wrong = f"E{place} command_line_flags.cc:63] Couldn't interpret value abc for flag xla_cpu_ftz."
    said = "usage: --xla_cpu_ftz=abc\n  --xla_cpu_ftz=true  bool  If true, flush to zero"
    assert probing._last_words(f"{wrong}\n{fatal}\n{said}") == "Couldn't interpret value abc for flag xla_cpu_ftz."
    assert probing._last_words(f"a warning\n{fatal}\n{said}") == "Check failed: Flag parsing failed."
    assert probing._last_words("first\nlast\n\n") == "last"
    assert probing._last_words("") == ""


@pytest.mark.parametrize(
    ("version", "found", "status"),
    [
        ("3.3.2", {"runs": True, "right": True}, "ok"),
        ("3.2.0", {"runs": True, "right": True}, "note"),
        ("3.3.2", {"runs": True, "right": False}, "problem"),
        ("4.0", {"runs": False}, "problem"),
        ("3.3.2", {"error": "PulpSolverError: no permission"}, "problem"),
        (None, {}, "problem"),
    ],
)
def test_the_solver_must_run_and_be_right(
    installed: Versions, version: str | None, found: dict[str, Any], status: str
) -> None:
    installed(pulp=version, alpa="0.2.3")
    assert machine.solver(Answer({"solver": found})).status == status


@pytest.mark.parametrize("answer", [Answer(), without("ray", "ImportError: protobuf")], ids=["missing", "broken"])
def test_ray_is_a_problem_only_for_whoever_asks_for_it(installed: Versions, answer: Answer) -> None:
    installed(ray="2.60.0" if answer.subjects else None)
    assert machine.ray(answer, None).status == "note"
    assert machine.ray(answer, Answer()).status == "problem"
    assert ("--force-reinstall" in machine.ray(answer, None).fix) is bool(answer.subjects)


def test_a_cluster_that_does_not_run_is_a_problem(installed: Versions) -> None:
    installed(ray="2.60.0")
    ray = Answer(WELL)
    assert machine.ray(ray, Answer({"cluster": {"right": True}})).status == "ok"
    assert machine.ray(ray, Answer({"cluster": {"right": False}})).status == "problem"
    assert "did not end" in machine.ray(ray, Answer({}, "did not end within 180 s")).found


def test_a_database_that_is_not_there_yet_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "new" / "profiles.sqlite"
    finding = profiles.database(str(path), JAX)
    assert finding.status == "ok"
    assert str(path) in finding.found
    assert not path.parent.exists()


def test_what_is_in_the_database_is_counted_by_mesh(tmp_path: Path) -> None:
    path = tmp_path / "profiles.sqlite"
    with ProfileDatabase.open(path) as database:
        for key, profile in [(key_of(0), measured()), (key_of(1), failed()), (key_of(2, mesh_shape=(8,)), measured())]:
            database.put(key, profile)
    finding = profiles.database(str(path), "0.10.2")
    assert finding.status == "ok"
    assert "3 profiles (1 failed): 2 of 2x4 cpu with jaxlib 0.10.2, 1 of 8 cpu with jaxlib 0.10.2" in finding.found


def test_profiles_of_another_jaxlib_are_worth_a_note(tmp_path: Path) -> None:
    make_database(tmp_path / "profiles.sqlite", 1)
    finding = profiles.database(str(tmp_path / "profiles.sqlite"), "0.11.2")
    assert finding.status == "note"
    assert finding.fix.startswith("alpa-cfp profiles prune --jaxlib 0.10.2")


def test_a_damaged_or_foreign_database_is_a_problem_and_stays_as_it_is(tmp_path: Path) -> None:
    sound, cut, foreign = tmp_path / "sound.sqlite", tmp_path / "cut.sqlite", tmp_path / "foreign.sqlite"
    make_database(sound)
    cut.write_bytes(sound.read_bytes()[:9000])
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")
    connection.close()
    for path in (cut, foreign, tmp_path):
        before = path.read_bytes() if path.is_file() else None
        finding = profiles.database(str(path), JAX)
        assert finding.status == "problem"
        assert (path.read_bytes() if path.is_file() else None) == before


@pytest.mark.parametrize(("name", "said"), [(".", "is a directory"), (os.devnull, "is no ordinary file")])
def test_what_is_no_file_is_a_problem(name: str, said: str) -> None:
    finding = profiles.database(name, JAX)
    assert finding.status == "problem"
    assert said in finding.found


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is no ordinary file" in profiles.database(str(tmp_path / "pipe"), JAX).found


def test_an_empty_file_will_be_filled(tmp_path: Path) -> None:
    (tmp_path / "new.sqlite").touch()
    assert profiles.database(str(tmp_path / "new.sqlite"), JAX).status == "ok"


def test_a_folder_that_cannot_be_looked_into_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def locked(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(profiles, "file_kind", locked)  # permissions do not bind the superuser
    finding = profiles.database(str(tmp_path / "locked" / "a.sqlite"), JAX)
    assert "a.sqlite cannot be looked at: Permission denied" in finding.found
    assert finding.fix.startswith(f"make {tmp_path / 'locked'} readable")


def test_a_database_that_cannot_be_made_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert profiles.database(str(tmp_path / "file" / "profiles.sqlite"), JAX).status == "problem"


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("import os; os._exit(7)", "the process that looked at it ended with exit code 7"),
        (
            "import os; os.write(2, b'one\\nlast words\\n'); os._exit(7)",
            "the process that looked at it ended with exit code 7: last words",
        ),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            "the process that looked at it was killed by SIGSEGV",
        ),
    ],
)
def test_a_package_that_breaks_when_imported_is_reported(fake: Fake, source: str, error: str) -> None:
    fake("ray", source)
    assert asked("ray").error("ray") == error


def test_a_package_that_prints_does_not_confuse(fake: Fake) -> None:
    fake("ray", "print('hello\\nalpa-cfp-probe:{'); __version__ = '9'")
    answer = asked("ray")
    assert (answer.error("ray"), answer.value("ray", "version")) == ("", "9")


def test_a_package_that_hangs_when_imported_is_stopped(fake: Fake) -> None:
    fake("ray", "import time; time.sleep(600)")
    assert asked("ray", timeout_s=1.0).error("ray") == "the process that looked at it did not end within 1 s"


def test_no_process_is_left_when_the_examination_is_interrupted(fake: Fake) -> None:
    fake("ray", "import time; time.sleep(600)")
    processes = []

    def interrupted() -> None:
        with probing.started(["ray"]) as probes:
            processes.extend(running.process for running in probes._running.values())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [process.poll() for process in processes] == [-9]


def test_messages_lose_the_folders_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    text = probing.without_paths(f"found /home/somebody/x, {Path.cwd()}/alpa/__init__.py and {sys.prefix}/lib")
    assert text == "found ~/x, ./alpa/__init__.py and the environment/lib"
    assert len(probing.without_paths("x" * 10_000)) < 1000


@pytest.mark.ray
@pytest.mark.slow
def test_a_cluster_of_one_cpu_runs_a_task_and_leaves_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")  # nobody's: a test network
    folders = sorted(Path(tempfile.gettempdir()).glob("cfp*"))
    answer = asked("cluster", timeout_s=120.0)
    assert answer.error("cluster") == ""
    assert answer.value("cluster", "right") is True
    assert sorted(Path(tempfile.gettempdir()).glob("cfp*")) == folders
