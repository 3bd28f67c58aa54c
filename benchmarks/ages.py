"""Which results are older than the code that they measure.

Takes the JSON files of `benchmarks/results/`; writes `results/README.md`, which says of each when it was measured, at
which commit, under which load, and whether the sources have changed since. `make lint` holds that the page
is true of the sources as they are (`--check`); after a change that makes results old, write it anew:

    python -m benchmarks.ages
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import code, reports

RESULTS = Path(__file__).resolve().parent / "results"
_PAGE = "README.md"
_HEAD = """# Results

What each benchmark measured last. Its page has all runs. *Older* means that sources which have a part in what is
measured (`benchmarks/code.py`) have changed since: the figures are those of the commit that is named, and may be others
today. Commits of results that are older than this page's first version are those that the results came with.

| results | measured | commit | load | the code |
| --- | --- | --- | --- | --- |
"""


def page(results: Path) -> str:
    """The page of a folder of results."""
    rows = [_row(path, reports.read(path)) for path in sorted(results.glob("*.json"))]
    return _HEAD + "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def write(results: Path) -> None:
    """Write the page of a folder of results into it."""
    (results / _PAGE).write_text(page(results))


def _row(path: Path, report: dict[str, Any]) -> list[str]:
    newest = report["codes"][-1]
    run = newest["runs"][-1]
    is_same = newest["code"] == code.digest(report["benchmark"])
    return [
        f"[{path.stem}]({path.stem}.md)",
        run["machine"]["date"],
        run["commit"] or "not known",
        str(run["machine"]["load_average"]),
        "the same" if is_same else "older",
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page of the results that are kept here, or tell (1) that it is not true of the sources any more."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page has to be written anew")
    if not parser.parse_args(argv).check:
        write(RESULTS)
        return 0
    if (RESULTS / _PAGE).read_text() == page(RESULTS):
        return 0
    print(f"{RESULTS / _PAGE} is not true of the sources any more: run `python -m benchmarks.ages`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
