"""The frame of a benchmark program: its options, a line for each case, its results' files.

Takes the results of a program one after the other; prints each, and writes all so far (`machine.write`). Invariant: a
program that is ended early has written all cases that it has finished.
"""

import argparse
import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import machine, reports
from benchmarks.reports import Row

# Help of the options that many programs have.
_HELP = {
    "rounds": "samples of each program",
    "copies": "copies of each program",
    "seed": "of the order in which programs run",
    "repeats": "runs of each case",
    "name": "start of the names of the results' files",
}


def parser(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser with `--no-results` and one option for each default.

    Args:
        description: The program's docstring, of which the first paragraph is shown.
        defaults: A number or a text for an option with one value, a sequence for one with several.
    """
    made = argparse.ArgumentParser(description=(description or "").split("\n\n")[0])
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        several = isinstance(default, (list, tuple))
        kind = type(default[0] if several else default)
        words = f"{_HELP[name]} (default {default})" if name in _HELP else f"default: {_shown(default)}"
        made.add_argument(option, default=default, type=kind, nargs="+" if several else None, help=words)
    made.add_argument("--no-results", action="store_true", help="print only, write no files")
    return made


def _shown(default: Any) -> str:
    """Return a default as it stands on a command line."""
    return " ".join(map(str, default)) if isinstance(default, (list, tuple)) else str(default)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The report that a benchmark program writes.

    Attributes:
        name: The name of its files.
        text: The comparison as a paragraph.
        header: The columns of its table.
        rows: Gives the table's rows for a result (see `one_row`).
        verdict: Sums up the results in a paragraph; None where there is nothing to sum up.
    """

    name: str
    text: str
    header: Sequence[str]
    rows: Callable[[Row], Sequence[Sequence[str]]]
    verdict: Callable[[Sequence[Row]], str] | None = None

    def run(self, results: Iterable[Row], options: argparse.Namespace) -> int:
        """Print and write results as they come; gives the exit code 0."""
        found: list[Row] = []
        for result in results:
            found.append(result)
            print("\n".join(" | ".join(row) for row in self.rows(result)), flush=True)
            if not options.no_results:
                machine.write(self.name, self.text, found, self._table(found), self.verdict)
            gc.collect()
        print("\n".join(reports.markdown_table(self._table(found))))
        if self.verdict is not None:
            print(self.verdict(found))
        return 0

    def _table(self, results: Sequence[Row]) -> list[Sequence[str]]:
        return [self.header, *(row for result in results for row in self.rows(result))]


def one_row(cells: Callable[[Row], list[str]]) -> Callable[[Row], list[list[str]]]:
    """Return `cells` as a function that gives a table's rows."""
    return lambda result: [cells(result)]


def finish(name: str, text: str, results: Sequence[Row], table: Sequence[Sequence[str]], no_results: bool) -> int:
    """Print the table of all results at once, and write them unless told not to; gives the exit code 0."""
    print(text, *reports.markdown_table(table), sep="\n")
    if not no_results:
        print(machine.write(name, text, results, table))
    return 0
