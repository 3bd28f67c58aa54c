"""What `bench` and `plan` have in common, a model on a mesh: what it cannot be is one line, before anything runs."""

import os
import sys
import types
from pathlib import Path
from typing import Any

import jax
import pytest

from alpa_cfp.cli.main import WRONG_USE, main
from alpa_cfp.cli.workload import FIELDS_OF, check_database, describe_sizes
from alpa_cfp_bench.workloads import models
from alpa_cfp_bench.workloads.sizes import SIZES, Size

pytestmark = pytest.mark.slow

both = pytest.mark.parametrize("command", ["bench", "plan"])


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment put back afterwards: commands ask for devices there."""
    monkeypatch.delenv("ALPA_CFP_DATABASE", raising=False)
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))


def refused(capsys: pytest.CaptureFixture[str], command: str, *arguments: str) -> str:
    """The one line of a command that is refused, without the command."""
    assert main([command, *arguments]) == WRONG_USE
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith(f"alpa-cfp {command}: ")
    return line.removeprefix(f"alpa-cfp {command}: ")


@both
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model gtp", "there is no model 'gtp': --model takes one of gpt, llama,"),
        ("--mesh 2by4", "'2by4' is no mesh: --mesh takes two to eight sizes of at least 1, such as 2x4 or 1x8"),
        ("--mesh 0x4", "'0x4' is no mesh"),
        ("--mesh 8", "'8' is no mesh"),
        ("--mesh 2x2x2 --ray 10.0.0.1:6379", "--ray runs alpa, whose meshes have two axes, and --mesh is 2x2x2: leave"),
        ("--mesh 50x50", "a 50x50 mesh needs 2500 devices, and there are 8 (cpu), because XLA_FLAGS is '"),
        ("--size huge", "--size 'huge' is neither \"tiny\" nor NAME=N with a NAME of batch, hidden,"),
        ("--size depth=3", "--size 'depth=3' is neither"),
        ("--size layers", "--size 'layers' is neither"),
        ("--size layers=0", "--size 'layers=0' is neither"),
        ("--model mlp --size layers=3", "--size 'layers=3': mlp has no such size, only batch, hidden"),
        ("--micro-batches 3", "a batch of 16 samples cannot be cut into 3 equal parts (--micro-batches)"),
        ("--micro-batches 0", "a batch of 16 samples cannot be cut into 0 equal parts (--micro-batches)"),
        ("--size batch=6 --micro-batches 4", "a batch of 6 samples cannot be cut into 4 equal parts"),
    ],
)
def test_a_workload_that_cannot_be_is_refused(
    command: str, words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, command, *words.split()).startswith(message)


@both
def test_a_command_without_alpa_points_to_the_doctor(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "alpa", None)
    assert "`alpa-cfp doctor` says what is missing and how to install it" in refused(capsys, command)


@pytest.mark.parametrize("error", [RuntimeError("Unable to initialize backend 'cuda'"), AssertionError()])
def test_devices_that_jax_cannot_start_are_one_line(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        raise error

    monkeypatch.setattr(jax, "local_devices", fail)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    line = refused(capsys, "plan")
    assert line.startswith(f"JAX cannot start the devices of JAX_PLATFORMS='cuda': {str(error) or 'it finds none'}. ")


def test_fewer_accelerators_than_the_mesh_needs_are_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = types.SimpleNamespace(platform="gpu", device_kind="NVIDIA H100")
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu])
    assert refused(capsys, "plan", "--mesh", "1x2") == (
        "a 1x2 mesh needs 2 devices, and there are 1 (NVIDIA H100): give a smaller --mesh, or set JAX_PLATFORMS=cpu to "
        "run on virtual devices of the CPU"
    )


def test_flags_that_end_each_process_of_xla_are_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1")
    line = refused(capsys, "plan")
    assert line.startswith("XLA cannot use XLA_FLAGS='--xla_no_such_flag=1': the process that looked at it ended")
    assert "Unknown flag in XLA_FLAGS: --xla_no_such_flag=1" in line


def test_devices_that_the_user_asked_for_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from alpa_cfp_bench.devices import ask_for_virtual_devices

    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=3")
    ask_for_virtual_devices(8)
    assert os.environ["XLA_FLAGS"] == "--xla_force_host_platform_device_count=3"
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=there")
    ask_for_virtual_devices(8)
    assert os.environ["XLA_FLAGS"] == "--xla_dump_to=there --xla_force_host_platform_device_count=8"
    monkeypatch.setenv("XLA_FLAGS", "flags.txt")  # a file with flags
    ask_for_virtual_devices(8)
    assert os.environ["XLA_FLAGS"] == "flags.txt"


@both
@pytest.mark.parametrize("named_by", ["option", "environment"])
def test_a_file_that_is_no_database_is_refused_and_left_alone(
    command: str, named_by: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine, and no database " * 100)
    if named_by == "environment":
        monkeypatch.setenv("ALPA_CFP_DATABASE", str(file))
    arguments = ["--database", str(file)] if named_by == "option" else []
    assert "cannot be read as a profile database" in refused(capsys, command, *arguments)
    assert file.read_text().startswith("mine")
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("name", [".", os.devnull])
def test_what_is_no_file_is_no_database(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALPA_CFP_DATABASE", name)
    line = refused(capsys, "plan")
    assert line.startswith("the profile database cannot be /")
    assert line.endswith(", which is no ordinary file: name another one")


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    (tmp_path / "new.sqlite").touch()
    check_database(tmp_path / "new.sqlite")


@pytest.mark.parametrize("model", SIZES)
def test_a_model_has_the_sizes_that_it_is_said_to_have(model: str) -> None:
    looked_at = set()

    class Watched(Size):
        def __getattribute__(self, name: str) -> Any:
            if not name.startswith("_"):
                looked_at.add(name)
            return super().__getattribute__(name)

    models.abstract(model, Watched(**vars(SIZES[model])))
    assert looked_at == set(FIELDS_OF[model])


def test_the_sizes_are_described_as_they_are() -> None:
    lines = describe_sizes().splitlines()
    assert [line.split()[0] for line in lines] == list(SIZES)
    assert ["mlp", "batch=512", "hidden=512"] in [line.split() for line in lines]
