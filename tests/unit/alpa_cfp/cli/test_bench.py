"""What can be wrong with the command line of `alpa-cfp bench` ends in one line and exit code 2; nothing runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from alpa_cfp.bench.case import METHODS
from alpa_cfp.cli.main import main
from alpa_cfp.workloads.sizes import SIZES


def refused(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of a command that is refused."""
    assert main(words.split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("bench --model elmo", "there is no model 'elmo': --model takes one of gpt, llama,"),
        ("bench --mesh 2by4", "'2by4' is no mesh: --mesh takes two sizes of at least 1, such as 2x4 or 1x8"),
        ("bench --mesh 0x4", "'0x4' is no mesh"),
        ("bench --mesh 4x4", "a 4x4 mesh needs 16 devices, and there are 8 (cpu), because XLA_FLAGS is"),
        ("bench --methods cfp zero9", "there is no method 'zero9': --methods takes some of cfp, alpa-ilp,"),
        ("bench --model mlp --mesh 1x3 --methods zero2", "zero2 cannot run mlp on a 1x3 mesh: 512 samples cannot be"),
        ("bench --size huge", "--size 'huge' is neither \"tiny\" nor NAME=N with a NAME of batch, hidden,"),
        ("bench --size depth=3", "--size 'depth=3' is neither"),
        ("bench --size layers=0", "--size 'layers=0' is neither"),
        ("bench --micro-batches 3", "a batch of 16 samples cannot be cut into 3 equal parts (--micro-batches)"),
        ("bench --micro-batches 0", "a batch of 16 samples cannot be cut into 0 equal parts (--micro-batches)"),
        ("bench --rounds 0", "--rounds is 0, and must be at least 1"),
        ("bench --copies -1", "--copies is -1, and must be at least 1"),
        ("bench --json /nowhere/a.json", "--json /nowhere/a.json cannot be written: is there such a directory"),
        ("bench --picture a.bmp", "--picture a.bmp has no format: its name ends with .png, .svg or .pdf"),
        ("bench --methods zero2 --save-plan a.json", "--save-plan writes the plan of the method cfp, which is not"),
    ],
)
def test_wrong_use_is_one_line_that_says_what_to_do(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(words, capsys).startswith(f"alpa-cfp bench: {message}")


def test_a_directory_is_no_file_to_write(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "is a directory" in refused(f"bench --json {tmp_path}", capsys)


def test_a_file_that_is_no_database_is_refused_and_left_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine, and no database " * 100)
    assert "cannot be read as a profile database" in refused(f"bench --database {file}", capsys)
    assert file.read_text().startswith("mine")
    assert list(tmp_path.iterdir()) == [file]


def test_a_picture_without_matplotlib_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    line = refused("bench --picture a.png", capsys)
    assert line == (
        "alpa-cfp bench: --picture needs matplotlib, which is not installed: pip install matplotlib, or leave it out"
    )


def test_help_names_each_method_and_model(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(name in said for name in [*METHODS, *SIZES, "examples:", "$ALPA_CFP_DATABASE"])


def test_help_needs_no_jax() -> None:
    code = "import sys; from alpa_cfp.cli.main import main\ntry: main(['bench', '--help'])\n"
    code += "except SystemExit: print('jax' in sys.modules, 'alpa' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "False False"


def test_devices_that_the_user_asked_for_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from alpa_cfp.bench.devices import ask_for_virtual_devices

    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=3")
    ask_for_virtual_devices(8)
    assert os.environ["XLA_FLAGS"] == "--xla_force_host_platform_device_count=3"
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=there")
    ask_for_virtual_devices(8)
    assert os.environ["XLA_FLAGS"] == "--xla_dump_to=there --xla_force_host_platform_device_count=8"
