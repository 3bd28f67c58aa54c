"""Runs the code of a page of documentation, in the order of the page, and compares what comes out with what is shown.

Takes a Markdown page; gives a line for each difference, and exit code 1 if there is any. Everything runs in this
process and in the current folder, so later code finds the files and names of earlier code. What a page can hold:

- a `python` block: is run; a `text` block right below it shows what it prints.
- a `console` block: lines that begin with `$ alpa-cfp` are run; what follows each is what it prints.
- lines of an indented block that begin with `alpa-cfp`: are run, but for those in `NOT_RUN`.
- a `diff` block: is applied to a copy of the package in the current folder, from which everything of the page runs.
- a comment `<!-- python ... -->`: is run, and no reader sees it.

In what is shown `...` in a line of its own stands for any lines. `varies` after the language of a block says that
numbers may differ (times do), and spaces and rules with them; `measured`, that all of it may, since it comes from what
was measured, and where it has `...` the number of lines, too. Invariant: no other block is run.

    python tests/integration/pages.py docs/profiles.md          # in an empty folder
    python tests/integration/pages.py docs/profiles.md --write  # puts what comes out into the page
"""

import argparse
import contextlib
import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# They have tests of their own: one takes minutes, the other ends with 1 where something is wrong with the machine.
NOT_RUN = ("bench", "doctor")
_PROMPT = "$ "
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass(frozen=True)
class Block:
    """A piece of a page that is not prose.

    Attributes:
        language: What stands after the fence; "indented" for a block without one, "hidden" for a comment that is run.
        how: What may differ in what it shows: "varies", "measured", or nothing ("").
        first: The number of its first line, from 0, without the fence.
        lines: Its lines, without fence and indentation.
    """

    language: str
    how: str
    first: int
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def blocks_of(text: str) -> Iterator[Block]:
    """The blocks of a page, in order."""
    lines, at = text.split("\n"), 0
    while at < len(lines):
        line, first = lines[at], at + 1
        if line.startswith("```") or line == "<!-- python":
            end = "```" if line.startswith("```") else "-->"
            words = line.strip("`").split() if end == "```" else ["hidden"]
            at = next((number for number in range(first, len(lines)) if lines[number].rstrip() == end), len(lines))
            yield Block(words[0] if words else "", " ".join(words[1:]), first, tuple(lines[first:at]))
        elif line.startswith("    ") and at and not lines[at - 1]:
            first = at
            while at < len(lines) and (lines[at].startswith("    ") or not lines[at]):
                at += 1
            yield Block("indented", "", first, tuple(each[4:] for each in "\n".join(lines[first:at]).split("\n")))
            continue
        at += 1


@dataclass(frozen=True)
class Output:
    """What a page shows of what a piece of code prints, and what it did print."""

    first: int
    shown: tuple[str, ...]
    printed: tuple[str, ...]
    how: str

    @property
    def agrees(self) -> bool:
        """Whether the two are the same, but for what may vary."""
        if self.how == "measured":
            shortened = any(line.strip() == "..." for line in self.shown)
            return bool(self.printed) if shortened else len(self.shown) == len(self.printed)
        any_lines = "(?:.*\n)*?"
        pattern = "".join(
            any_lines if line.strip() == "..." else re.escape(self._comparable(line)) + "\n" for line in self.shown
        )
        return re.fullmatch(pattern, "".join(self._comparable(line) + "\n" for line in self.printed)) is not None

    def _comparable(self, line: str) -> str:
        line = line.rstrip()
        if self.how == "varies":
            line = re.sub("-{2,}", "--", re.sub(" +", " ", _NUMBER.sub("#", line))).strip()
        return line


class Page:
    """A page that is being run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.blocks = tuple(blocks_of(path.read_text()))
        self.outputs: list[Output] = []
        self._names: dict[str, Any] = {"__name__": "__main__"}

    def run(self) -> None:
        """Run everything; what is printed is kept in `outputs`.

        Raises:
            RuntimeError: a command ends with another exit code than 0.
        """
        self._patch()
        printed = ""
        for block in self.blocks:
            if block.language in ("python", "hidden"):
                # Lines before it, so that errors name the line of the page.
                code = compile("\n" * block.first + block.text, str(self.path), "exec")
                with _captured() as output:
                    exec(code, self._names)
                printed = output.getvalue()
            elif block.language == "text":
                self._note(block.first, block.lines, printed, block.how)
            elif block.language == "console":
                self._console(block)
            elif block.language == "indented":
                for line in block.lines:
                    if line.startswith("alpa-cfp "):
                        _run(line)

    def _console(self, block: Block) -> None:
        starts = [number for number, line in enumerate(block.lines) if line.startswith(_PROMPT)]
        for start, end in zip(starts, [*starts[1:], len(block.lines)], strict=True):
            printed = _run(block.lines[start].removeprefix(_PROMPT))
            self._note(block.first + start + 1, block.lines[start + 1 : end], printed, block.how)

    def _note(self, first: int, shown: tuple[str, ...], printed: str, how: str) -> None:
        self.outputs.append(Output(first, shown, tuple(printed.rstrip("\n").split("\n")) if printed else (), how))

    def _patch(self) -> None:
        """Apply the page's diffs to a copy of the package, from which it is imported from now on."""
        diffs = [block.lines for block in self.blocks if block.language == "diff"]
        if not diffs:
            return
        copy = Path("alpa_cfp")
        shutil.copytree(ROOT / "alpa_cfp", copy, ignore=shutil.ignore_patterns("__pycache__"))
        file = copy
        for lines in diffs:
            old: list[str] = []
            new: list[str] = []
            for line in (*lines, "@@"):
                if line.startswith(("--- ", "@@")):
                    _replace(file, old, new)
                    old, new = [], []
                    file = Path(line[4:]) if line.startswith("--- ") else file
                elif not line.startswith("+++ "):
                    if not line.startswith("+"):
                        old.append(line[1:])
                    if not line.startswith("-"):
                        new.append(line[1:])
        sys.path.insert(0, str(Path.cwd()))

    def written(self) -> str:
        """The page with what was printed in the place of what differs from it; what is shortened by `...` stays."""
        lines = self.path.read_text().split("\n")
        for output in reversed(self.outputs):
            if not output.agrees and not any(line.strip() == "..." for line in output.shown):
                lines[output.first : output.first + len(output.shown)] = output.printed
        return "\n".join(lines)


def _replace(file: Path, old: list[str], new: list[str]) -> None:
    if not old and not new:
        return
    text, before = file.read_text(), "".join(f"{line}\n" for line in old)
    if text.count(before) != 1:
        raise ValueError(f"{file} must have these lines exactly once:\n{before}")
    file.write_text(text.replace(before, "".join(f"{line}\n" for line in new)))


@contextlib.contextmanager
def _captured() -> Iterator[io.StringIO]:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        yield output


def _run(command: str) -> str:
    """What an `alpa-cfp` command prints."""
    from alpa_cfp.cli.main import main

    program, *arguments = shlex.split(command, comments=True)
    if program != "alpa-cfp":
        raise ValueError(f"{command}: only alpa-cfp is run")
    if arguments[0] in NOT_RUN:
        return ""
    with _captured() as output:
        try:
            code = main(arguments)
        except SystemExit as end:  # --help
            code = end.code
    if code:
        raise RuntimeError(f"{command}: exit code {code}")
    return output.getvalue()


def main() -> int:
    """Run the page that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--write", action="store_true", help="put what is printed into the page")
    options = parser.parse_args()
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_force_host_platform_device_count" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=8".strip()
    # As wide as a terminal usually is, for argparse.
    os.environ["COLUMNS"] = "80"
    page = Page(options.page.resolve())
    page.run()
    wrong = [output for output in page.outputs if not output.agrees]
    for output in wrong:
        print(f"{options.page}:{output.first + 1} shows\n" + "\n".join(output.shown))
        print("and what comes out is\n" + "\n".join(output.printed) + "\n")
    if options.write and wrong:
        page.path.write_text(page.written())
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
