"""The frame of the command line: help without heavy imports, and what a user gets wrong in one line."""

import argparse
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

import alpa_cfp
from alpa_cfp.cli.main import COMMANDS, main
from alpa_cfp.cli.process import UserError
from alpa_cfp.database import DatabaseDamagedError
from alpa_cfp.errors import CFPError

Install = Callable[[Callable[[], int]], None]


@pytest.fixture
def a_command(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Gives `alpa-cfp doctor` another body."""

    def install(body: Callable[[], int]) -> None:
        module = types.ModuleType("alpa_cfp.cli.doctor")
        vars(module).update(add_arguments=lambda parser: None, run=lambda arguments: body())
        monkeypatch.setitem(sys.modules, module.__name__, module)

    return install


def raising(error: BaseException) -> Callable[[], int]:
    def body() -> int:
        raise error

    return body


def exit_code(*arguments: str) -> int:
    """Of a command line that argparse ends."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_help_imports_neither_jax_nor_alpa() -> None:
    code = (
        "import sys\nfrom alpa_cfp.cli.main import main\n"
        "try:\n    main(['--help'])\nfinally:\n    print(sorted({'jax', 'alpa', 'ray', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("usage: alpa-cfp")
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", ["doctor", "profiles"])
def test_the_light_commands_import_neither_jax_nor_alpa(command: str) -> None:
    code = f"import sys, alpa_cfp.cli.{command}\nprint(sorted({{'jax', 'alpa', 'ray', 'numpy'}} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--help") == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in COMMANDS)


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"alpa-cfp {alpa_cfp.__version__}\n"


def test_an_unknown_command_is_wrong_use_and_the_known_ones_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("benhc") == 2
    told = capsys.readouterr().err
    assert "'benhc'" in told
    assert all(command in told for command in COMMANDS)


def test_no_command_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code() == 2
    assert "COMMAND" in capsys.readouterr().err


def test_the_exit_code_is_the_command_s(a_command: Install) -> None:
    a_command(lambda: 1)
    assert main(["doctor"]) == 1


@pytest.mark.parametrize(
    "error",
    [
        UserError("the mesh 3x5\nhas no devices"),
        CFPError("the mesh 3x5\nhas no devices"),
        DatabaseDamagedError("FILE", "the mesh 3x5\nhas no devices"),
        PermissionError("the mesh 3x5\nhas no devices"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_mistake_of_the_user_is_one_line_and_exit_code_2(
    error: Exception, a_command: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    a_command(raising(error))
    assert main(["doctor"]) == 2
    out, told = capsys.readouterr()
    assert out == ""
    assert told.count("\n") == 1
    assert told.startswith("alpa-cfp doctor: ")
    assert "the mesh 3x5 has no devices" in told


@pytest.mark.parametrize("name", ["absent/plan.json", "."])
def test_what_the_operating_system_says_begins_with_the_file(
    name: str, a_command: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    def reads() -> int:
        return len(Path(name).read_text())

    a_command(reads)
    assert main(["doctor"]) == 2
    reason = "Is a directory" if name == "." else "No such file or directory"
    assert capsys.readouterr().err == f"alpa-cfp doctor: {name}: {reason}\n"


def test_a_mistake_of_ours_is_not_hidden(a_command: Install) -> None:
    a_command(raising(ZeroDivisionError("ours")))
    with pytest.raises(ZeroDivisionError):
        main(["doctor"])


def test_ctrl_c_is_one_line_and_exit_code_130(a_command: Install, capsys: pytest.CaptureFixture[str]) -> None:
    a_command(raising(KeyboardInterrupt()))
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "alpa-cfp: interrupted; what was measured so far is kept\n"


def test_ctrl_c_ends_the_process_of_a_command_without_taking_jax_down(tmp_path: Path) -> None:
    # Python would end with an exit code of its own here, and would run what was registered for its end.
    code = (
        "import atexit, sys, types\nfrom alpa_cfp.cli.main import main\natexit.register(print, 'taken down')\n"
        "def run(arguments): print('half a table'); raise KeyboardInterrupt\n"
        "doctor = types.ModuleType('doctor')\ndoctor.add_arguments, doctor.run = lambda parser: None, run\n"
        "sys.modules['alpa_cfp.cli.doctor'] = doctor\nsys.argv = ['alpa-cfp', 'doctor']\nsys.exit(main())"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 130
    assert result.stdout == "half a table\n"
    assert result.stderr == "alpa-cfp: interrupted; what was measured so far is kept\n"


@pytest.mark.parametrize("command", ["doctor", "profiles"])
def test_help_of_a_command_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(command, "--help") == 0
    shown = capsys.readouterr().out
    assert f"alpa-cfp {command} " in shown.partition("examples:")[2]


def test_every_argument_of_the_light_commands_has_a_help_text() -> None:
    from alpa_cfp.cli import doctor, profiles

    silent = []
    parsers = []
    for module in (doctor, profiles):
        parser = argparse.ArgumentParser(module.__name__)
        module.add_arguments(parser)
        parsers.append(parser)
    for parser in parsers:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
            elif not action.help:
                silent.append((parser.prog, action.dest))
    assert silent == []
