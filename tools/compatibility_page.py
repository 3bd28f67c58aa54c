"""Writes the generated parts of docs/compatibility.md: what became of Alpa's own tests, and what is replaced in alpa.

Takes result files of `alpa_tests.py`, one for each version of JAX, and asks the installed `alpa_on_jax` what it
replaces. Gives back the page with the text between its markers, `<!-- NAME: begin -->` and `<!-- NAME: end -->`,
made anew. Invariant: nothing outside of the markers changes, and each test stands in exactly one row.

    python tools/compatibility_page.py docs/compatibility.md results-0.10.2.json results-0.11.2.json
"""

import argparse
import importlib
import importlib.util
import json
import pkgutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_MEANINGS = {
    "passed": "passes",
    "failed": "fails",
    "skipped": "skipped by Alpa",
    "needs_ray": "not run",
    "not_loaded": "not run",
    "crashed": "crashes",
    "timed_out": "runs out of time",
}


@dataclass(frozen=True)
class Results:
    """The outcomes of Alpa's tests with one version of JAX: test name -> (what happened, why)."""

    jax_version: str
    outcomes: dict[str, tuple[str, str]]


def read_results(path: Path) -> Results:
    """Read one file of `alpa_tests.py`."""
    report = json.loads(path.read_text())
    outcomes = {o["test"]: (_MEANINGS[o["status"]], _reason(o["status"], o["reason"])) for o in report["outcomes"]}
    return Results(report["jax"], outcomes)


def _reason(status: str, reason: str) -> str:
    if status in ("passed", "skipped"):
        return ""
    if status == "needs_ray":
        return 'asks for a Ray cluster (`alpa.init("ray")`), and was not run on one'
    if "Unknown backend: 'gpu'" in reason:
        return "asks JAX for GPUs while its file is imported, which raises where there are none"
    return reason.partition(". ")[0]


def tests_section(results: Sequence[Results]) -> str:
    """Counts first, then one table for each outcome and reason, with a row for each file."""
    tests = list(dict.fromkeys(test for result in results for test in result.outcomes))
    absent = ("not run", "not among the results")
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for test in tests:
        groups.setdefault(tuple(result.outcomes.get(test, absent) for result in results), []).append(test)
    lines = ["| JAX | " + " | ".join(dict.fromkeys(_MEANINGS.values())) + " | all |", "|---" * 7 + "|---|"]
    for result in results:
        counts = Counter(what for what, _ in result.outcomes.values())
        row = [str(counts[what]) for what in dict.fromkeys(_MEANINGS.values())]
        lines.append(f"| {result.jax_version} | {' | '.join(row)} | {len(result.outcomes)} |")
    for outcomes, members in sorted(groups.items(), key=lambda item: _order(item[0])):
        lines += ["", f"### {_title(results, outcomes)}: {len(members)}", "", "| file | tests |", "|---|---|"]
        files: dict[str, list[str]] = {}
        for test in members:
            file, _, name = test.split("::")
            files.setdefault(file, []).append(name)
        lines += [f"| `{file}` | {', '.join(names)} |" for file, names in files.items()]
    return "\n".join(lines)


def _order(outcomes: tuple[tuple[str, str], ...]) -> tuple[int, tuple[tuple[str, str], ...]]:
    return list(dict.fromkeys(_MEANINGS.values())).index(outcomes[0][0]), outcomes


def _title(results: Sequence[Results], outcomes: tuple[tuple[str, str], ...]) -> str:
    said = [f"{what}: {why}" if why else what for what, why in outcomes]
    if len(set(said)) == 1:
        return said[0][0].upper() + said[0][1:]
    return "; ".join(f"{result.jax_version} {text}" for result, text in zip(results, said, strict=True))


def replacements_section() -> str:
    """The names that `alpa_on_jax` replaces, by module, after importing every module of alpa that it has a file for."""
    import alpa  # the import hook comes with it

    import alpa_on_jax.alpa
    from alpa_on_jax.replacing import replacements

    for info in pkgutil.walk_packages(alpa_on_jax.alpa.__path__, f"{alpa.__name__}."):
        # Some files hold what several replacements share, and have no module of alpa.
        if importlib.util.find_spec(info.name) is not None:
            importlib.import_module(info.name)
    lines = ["| module | names |", "|---|---|"]
    for module, names in sorted(replacements().items()):
        lines.append(f"| `{module}` | {', '.join(f'`{name}`' for name in dict.fromkeys(names))} |")
    return "\n".join(lines)


def with_section(page: str, name: str, text: str) -> str:
    """`page` with `text` between the markers of `name`.

    Raises:
        ValueError: the page has not exactly one pair of these markers.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page must have {begin} and {end} once each")
    head, _, rest = page.partition(begin)
    return f"{head}{begin}\n{text}\n{end}{rest.partition(end)[2]}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, help="the page to rewrite")
    parser.add_argument("results", type=Path, nargs="*", help="files of alpa_tests.py; none: the tests' part stays")
    options = parser.parse_args()
    page = with_section(options.page.read_text(), "replacements", replacements_section())
    if options.results:
        page = with_section(page, "alpa tests", tests_section([read_results(path) for path in options.results]))
    options.page.write_text(page)


if __name__ == "__main__":
    main()
