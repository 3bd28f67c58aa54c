"""What the documentation shows is so: its code runs, what it prints is what is shown, its commands and links exist.

`pages.py` runs a page. What it does not run is a command in an indented block or in the prose: each is looked up (the
make target, the module with its options, the file), and what cannot even be looked up stands in `EXCUSED` with the
reason.
"""

import importlib
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from alpa_cfp.cli import main as cli
from alpa_cfp_bench.table import lines
from integration.pages import ROOT, Block, Output, blocks_of
from unit.benchmarks.alpa_cfp_bench.comparisons import MACHINE, comparison

PAGES = sorted(
    [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "examples" / "README.md"], key=lambda page: page.name
)
RUN = [page for page in PAGES if any(each.language in ("python", "console") for each in blocks_of(page.read_text()))]
# The versions whose output is shown. Another JAX traces some programs into other ops; there the code has to run.
SHOWN = "0.10.2"

# The beginnings of commands that no test here runs or looks up.
EXCUSED = {
    "pip ": "it changes the environment; tests/unit/test_packaging_install.py installs the project",
    ".venv-try/bin/": "an environment with a JAX that is not tested",
    "git clone": "it needs a network",
    "ray ": "it starts and ends processes that stay; tests/ray starts clusters of its own",
    "source ": "it changes the shell in which it runs",
    "export RAY_AUTH": "for `ray start`, which is not run",
    ".ci/run": "it runs these tests",
    ".venv/bin/alpa-cfp": "needs what `make demo` made; the same commands are run in docs/explaining.md",
}
# Blocks without a language, which show something that is no code, by the page.
NOT_CODE = {
    "architecture.md": "the way of a program, drawn with letters",
    "cluster.md": "what a bench printed on two hosts; tests/ray/test_bench.py runs one",
    "faults.md": "how training goes on on a cluster; tests/ray/test_faults.py does so",
    "jax-programs.md": "a program that SLURM starts; tests/integration/test_several_processes.py runs it",
    "pipelines.md": "what a bench printed on two hosts; tests/ray/test_bench.py runs one",
    "targets.md": "what needs the compiler of a target, and what it printed; tests/targets plans with it",
    "reference.md": "signatures and help, made by `make reference`; tests/unit/test_reference_page.py holds them",
    "demo.md": "what `make demo` prints, and of its plan; its labels are held against the bench's below",
}
_COMMAND = re.compile(
    r"(?:[A-Z_]+=\S+ )*((?:make|python|pip|alpa-cfp|git|ray|export|source) \S|\.ci/run|\.venv[\w-]*/bin/)"
)
_LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")

pytestmark = pytest.mark.slow


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commands(page: Path) -> Iterator[str]:
    """The commands that a page shows, without variables in front of them: whole lines of indented blocks, and code in
    the prose that begins like one.
    """
    text = page.read_text()
    for block in blocks_of(text):
        if block.language == "indented":
            for line in filter(None, block.lines):
                command = _COMMAND.match(line)
                assert command, f"{named(page)}:{block.first}: {line!r} is no command that is known"
                yield line[command.start(1) :]
        elif block.language == "console":
            yield from (line.removeprefix("$ ") for line in block.lines if line.startswith("$ "))
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for code in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose):
        command = _COMMAND.match(code)
        # `<...>` is the notation of messages, NAME.py stands for each file of a folder.
        if command and "<" not in code and "NAME.py" not in code:
            yield code[command.start(1) :]


COMMANDS = sorted({command for page in PAGES for command in commands(page)})


def words_of(command: str) -> list[str]:
    return shlex.split(command, comments=True)


def program_of(command: str) -> tuple[str, ...]:
    """Of a command that begins with `python`: ("-m", module), or (file,)."""
    _, *words = words_of(command)
    return tuple(words[: 2 if words[0] == "-m" else 1])


PROGRAMS = sorted({program_of(each) for each in COMMANDS if each.startswith("python ")})


@pytest.mark.parametrize("page", RUN, ids=named)
def test_the_code_of_a_page_runs_and_prints_what_is_shown(page: Path, tmp_path: Path) -> None:
    environment = os.environ | {
        "ALPA_CFP_DATABASE": str(tmp_path / "profiles.sqlite"),
        # Without the flags by which tests compile faster: profiles would name them.
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    result = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "integration" / "pages.py"), str(page)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert "Traceback" not in result.stderr, result.stderr
    if jax.__version__ == SHOWN:
        assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.startswith("alpa-cfp")])
def test_a_command_of_alpa_cfp_is_one_with_options_that_it_has(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, *given = words_of(command)
    named_commands = [word for word in given[:2] if re.fullmatch("[a-z]+", word)]
    of_profiles = named_commands[:1] == ["profiles"]
    with pytest.raises(SystemExit) as end:
        cli.main([*named_commands[: 2 if of_profiles else 1], "--help"])
    assert end.value.code == 0
    assert_options_are_in(given, capsys.readouterr().out)


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.startswith("make ")])
def test_a_make_target_exists(command: str) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert words_of(command)[1] in targets


@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
def test_a_program_exists_with_the_options_that_are_shown(
    program: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"])  # put back where a program adds to it
    shown = [each for each in COMMANDS if each.startswith("python ") and program_of(each) == program]
    if program[0] != "-m":
        monkeypatch.syspath_prepend(str((ROOT / program[0]).parent))
        monkeypatch.setattr(sys, "argv", [program[0], "--help"])
    with pytest.raises(SystemExit) as end:
        show_help(program)
    assert end.value.code == 0
    words = [word for command in shown for word in words_of(command)[1 + len(program) :]]
    assert_options_are_in(words, capsys.readouterr().out)


def show_help(program: tuple[str, ...]) -> None:
    if program[0] == "-m":
        importlib.import_module(program[1]).main(["--help"])
    else:
        runpy.run_path(str(ROOT / program[0]), run_name="__main__")


def assert_options_are_in(words: list[str], help_text: str) -> None:
    for option in {word for word in words if word.startswith("-")}:
        assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", help_text), f"{option} is not in\n{help_text}"


def test_what_is_not_looked_up_is_excused_and_each_excuse_is_needed() -> None:
    rest = [each for each in COMMANDS if not each.startswith(("alpa-cfp", "make ", "python "))]
    excused = {command: [begin for begin in EXCUSED if command.startswith(begin)] for command in rest}
    assert [command for command, reasons in excused.items() if not reasons] == []
    assert set(EXCUSED) == {begin for begins in excused.values() for begin in begins}


def test_blocks_are_of_a_language_that_is_run_or_compared() -> None:
    others = {
        page.name
        for page in PAGES
        for block in blocks_of(page.read_text())
        if block.language not in ("python", "console", "text", "diff", "indented", "hidden")
    }
    assert others == set(NOT_CODE)


def test_the_page_of_the_demo_shows_the_lines_that_the_bench_prints() -> None:
    shown, *_ = (block.text for block in blocks_of((ROOT / "docs" / "demo.md").read_text()) if not block.language)
    head, _, _ = "\n".join(lines(comparison(), MACHINE)).partition("\n\nplanning ")
    # Labels: what is printed whatever was measured.
    labels = [line for line in head.splitlines() if line.startswith(("method ", "communicated "))]
    assert len(labels) == 2
    for label in labels:
        words = re.split(" {2,}", label)
        assert any(set(words) <= set(re.split(" {2,}", line)) for line in shown.splitlines()), label


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "benchmarks.md"], ids=named)
def test_a_page_has_the_table_of_the_results(page: Path, tmp_path: Path) -> None:
    copy = tmp_path / page.name
    copy.write_text(page.read_text())
    command = [sys.executable, "-m", "benchmarks.page_tables", str(copy)]
    subprocess.run(command, check=True, timeout=60, cwd=ROOT)
    assert copy.read_text() == page.read_text(), f"run: python -m benchmarks.page_tables {named(page)}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=named)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in _LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_a_page_is_taken_apart_into_its_blocks() -> None:
    page = "text\n\n    a command\n\n    another\n\n```python\nx = 1\n```\n\n```text varies\n1 s\n```\n"
    page += "\n<!-- python\ny = 2\n-->\n"
    assert [(block.language, block.how, block.lines) for block in blocks_of(page)] == [
        ("indented", "", ("a command", "", "another", "")),
        ("python", "", ("x = 1",)),
        ("text", "varies", ("1 s",)),
        ("hidden", "", ("y = 2",)),
    ]
    assert Block("python", "", 7, ("x = 1",)).text == "x = 1\n"


@pytest.mark.parametrize(
    ("shown", "printed", "how", "agrees"),
    [
        (("a 1", "b"), ("a 1", "b"), "", True),
        (("a 1",), ("a 2",), "", False),
        (("a 1",), ("a 2.5",), "varies", True),
        (("a 1 ms",), ("a 2 s",), "varies", False),
        (("a", "...", "d"), ("a", "b", "c", "d"), "", True),
        (("a", "...", "d"), ("a", "d"), "", True),
        (("a", "..."), ("b", "c"), "", False),
        (("a",), ("a", "b"), "", False),
        (("a", "1"), ("b", "2"), "measured", True),
        (("a",), ("b", "2"), "measured", False),
        (("a", "1", "..."), ("b",), "measured", True),
        (("a", "..."), (), "measured", False),
    ],
)
def test_output_agrees_with_what_is_shown_but_for_what_may_vary(
    shown: tuple[str, ...], printed: tuple[str, ...], how: str, agrees: bool
) -> None:
    assert Output(0, shown, printed, how).agrees is agrees
