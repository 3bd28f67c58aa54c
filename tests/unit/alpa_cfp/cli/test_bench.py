"""What can be wrong with the command line of `alpa-cfp bench` alone ends in one line and exit code 2; nothing runs."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from alpa_cfp.cli.main import main
from alpa_cfp_bench import running
from alpa_cfp_bench.case import ALL_METHODS, Case, Effort
from alpa_cfp_bench.workloads.sizes import SIZES

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty current folder, and the user's own database out of the way."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ALPA_CFP_DATABASE", str(tmp_path / "none.sqlite"))


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
        ("--methods cfp zero9", "there is no method 'zero9': --methods takes some of cfp, alpa-ilp,"),
        ("--model mlp --mesh 1x3 --methods zero2", "zero2 cannot run mlp on a 1x3 mesh: 512 samples cannot be"),
        (
            "--size tiny batch=6 --mesh 1x4 --methods data-parallel",
            "data-parallel cannot run gpt on a 1x4 mesh: 6 samples cannot be split into 4 equal parts. Leave it out of",
        ),
        (
            "--model mlp_wide --methods cfp zero3",
            "zero3 cannot run mlp_wide on a 2x4 mesh: 2 samples cannot be split into 8 equal parts. Leave it out of",
        ),
        ("--ray somewhere", "'somewhere' is no address of a Ray cluster: --ray takes <ip>:<port>, or local"),
        ("--ray auto", "'auto' is no address of a Ray cluster"),
        ("--hosts 2", "--hosts says how much of a Ray cluster to use: name the cluster by --ray ADDRESS"),
        ("--devices-per-host 2", "--devices-per-host says how much of a Ray cluster to use"),
        ("--ray local --hosts 0", "--hosts is 0, and must be at least 1"),
        ("--ray local --devices-per-host -1", "--devices-per-host is -1, and must be at least 1"),
        (
            "--ray 10.0.0.1:6379 --mesh 2x4 --hosts 2 --devices-per-host 2",
            "the 2x4 mesh does not have the devices of 2 hosts x 2: give --mesh 2x2, or other --hosts or",
        ),
        (
            "--ray local --methods cfp propagation",
            "propagation and --ray exclude each other: it is plain jax.jit of one process, which has none of the",
        ),
        ("--ray local --methods maxtext", "maxtext and --ray exclude each other: it is plain jax.jit of one process"),
        ("--methods maxtext", "maxtext cannot run gpt on a 2x4 mesh: there are rules for LLaMA only. Leave it out of"),
        ("--rounds 0", "--rounds is 0, and must be at least 1"),
        ("--copies -1", "--copies is -1, and must be at least 1"),
        ("--json absent/a.json", "--json absent/a.json cannot be written: is there such a directory"),
        ("--picture absent/a.png", "--picture absent/a.png cannot be written: is there such a directory"),
        ("--save-plan .", "--save-plan . is a directory"),
        ("--database .", "--database . is a directory"),
        ("--json a.png --picture ./a.png", "--picture and --json are the same file, a.png: name another one"),
        ("--json none.sqlite", "--database and --json are the same file, "),
        ("--picture a.bmp", "--picture a.bmp has no format: its name ends with .png, .svg or .pdf"),
        ("--methods zero2 --save-plan a.json", "--save-plan writes the plan of the method cfp, which is not"),
    ],
)
def test_wrong_use_is_one_line_that_says_what_to_do(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(f"bench {words}", capsys).startswith(f"alpa-cfp bench: {message}")


@pytest.mark.parametrize("words", ["", " --methods cfp alpa-ilp alpa-ilp-given megatron"])
def test_methods_that_do_not_fit_are_left_out_with_the_reason_unless_they_are_named(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    original = running.compare

    def compare(case: Case, methods: list[str], effort: Effort, *rest: Any) -> Any:
        asked.append(methods)
        return original(case, ["megatron"], effort, *rest)

    monkeypatch.setattr(running, "compare", compare)
    assert main(f"bench --model mlp_wide --mesh 1x8 --rounds 1 --copies 1 --size hidden=16{words}".split()) == 0
    assert asked == [["cfp", "alpa-ilp", "alpa-ilp-given", "megatron"]]
    said = capsys.readouterr().out.splitlines()
    unfit = [] if words else ["data-parallel", "zero2", "zero3", "propagation"]
    assert [line for line in said if "is left out" in line] == [
        f"{method} is left out: 2 samples cannot be split into 8 equal parts" for method in unfit
    ]


def test_a_picture_without_matplotlib_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    line = refused("bench --picture a.png", capsys)
    assert line == (
        "alpa-cfp bench: --picture needs matplotlib, which is not installed: pip install matplotlib, or leave it out"
    )


def test_a_cluster_without_ray_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    line = refused("bench --ray local", capsys)
    assert line == (
        'alpa-cfp bench: --ray needs Ray, which is not installed: pip install "ray>=2.60,<3", or leave --ray out'
    )


def test_a_picture_with_a_broken_matplotlib_says_what_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    line = refused("bench --picture a.png", capsys)
    assert "--picture needs matplotlib, which does not import: " in line
    assert "pip install --force-reinstall matplotlib" in line


def test_help_names_each_method_model_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(name in said for name in [*ALL_METHODS, *SIZES, "examples:", "$ALPA_CFP_DATABASE", "130: Ctrl-C"])


def test_help_needs_no_jax() -> None:
    code = "import sys; from alpa_cfp.cli.main import main\ntry: main(['bench', '--help'])\n"
    code += "except SystemExit: print('jax' in sys.modules, 'alpa' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "False False"
