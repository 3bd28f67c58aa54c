"""`alpa-cfp doctor`: checks this environment and machine, and prints a line for each finding, or all as JSON.

The exit code is 1 if there is a problem.
"""

import argparse
import json
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict

from alpa_cfp import __version__
from alpa_cfp.cli.process import reader_may_leave
from alpa_cfp.doctor import Finding, findings

EPILOG = """\
Every line is `ok`, `note` (worth knowing; everything works) or `problem`, with its fix.
The exit code is 0 without problems and 1 with. Nothing is installed, changed or attached to.

examples:
  alpa-cfp doctor
  alpa-cfp doctor --ray         also start a Ray cluster of one CPU, run a task, stop it
  alpa-cfp doctor --json        the same as JSON
"""
_PROBLEM = 1
_WIDEST = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `alpa-cfp doctor`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.add_argument("--ray", action="store_true", help="start a Ray cluster of one CPU and run a task on it")
    parser.add_argument(
        "--database", metavar="FILE", help="the profile database (default: $ALPA_CFP_DATABASE, or the user's)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs `alpa-cfp doctor`."""
    found: list[Finding] = []
    for finding in findings(arguments.database, cluster=arguments.ray):
        found.append(finding)
        if not arguments.json:
            with reader_may_leave():
                print("\n".join(lines(finding)), flush=True)
    wrong = any(finding.status == "problem" for finding in found)
    content = {"alpa_cfp": __version__, "ok": not wrong, "checks": [asdict(finding) for finding in found]}
    with reader_may_leave():
        print(json.dumps(content, indent=1) if arguments.json else f"\n{summary(found)}")
    return _PROBLEM if wrong else 0


def lines(finding: Finding) -> list[str]:
    """A finding as text: status, check, facts, and the fix."""
    first, rest = f"{finding.status:<8} {finding.check:<12} ", " " * 22
    shown = _wrapped(finding.found, first, rest)
    if finding.fix:
        shown += _wrapped(finding.fix, f"{rest}fix: ", f"{rest}     ")
    return shown


def summary(found: Iterable[Finding]) -> str:
    """The last line, with the number of problems and notes."""
    counts = Counter(finding.status for finding in found)
    problems, notes = (
        f"{counts[name] or 'no'} {word}{'' if counts[name] == 1 else 's'}"
        for name, word in (("problem", "problem"), ("note", "note"))
    )
    return f"alpa_cfp {__version__}: {problems}, {notes}"


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    if not sys.stdout.isatty():  # one line for each finding, for programs
        return [f"{first}{text}"]
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
