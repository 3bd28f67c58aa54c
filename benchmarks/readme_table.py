"""Writes the table against Alpa's ILP into the README.

Takes the README and the results of `python -m benchmarks.cfp_race`; gives back the README with the text between
`<!-- race: begin -->` and `<!-- race: end -->` made anew. Of the code that was measured last, a case with several runs
stands there with its medians. Invariants: nothing outside of the markers changes; no number is there that is not in
the results, with the command, the machine and the date that they come from.

    python -m benchmarks.readme_table README.md
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from alpa_cfp.bench.case import CFP, ILP, ILP_GIVEN
from benchmarks.race_results import best_other, cfp_by, geometric_mean
from benchmarks.reports import Row, markdown_table, read, rows_of

RESULTS = Path(__file__).resolve().parent / "results" / "cfp_race-jax0.10.2.json"
_BEGIN, _END = "<!-- race: begin -->", "<!-- race: end -->"
_HEADER = (
    "model, mesh",
    "CFP, ms",
    "Alpa's ILP, ms",
    "CFP by it",
    "by the ILP on the mesh as given",
    "best other",
    "CFP by it",
    "plan found by",
    "planning: CFP, ILP",
)
_NAMES = {
    ILP: "Alpa's ILP",
    ILP_GIVEN: "Alpa's ILP as given",
    "data-parallel": "data parallel",
    "zero2": "ZeRO-2",
    "zero3": "ZeRO-3",
    "megatron": "Megatron",
    "gpt": "GPT",
    "llama": "LLaMA",
    "moe": "MoE",
    "wide_resnet": "Wide-ResNet",
}
_SEARCH = "search"


def section(report: dict[str, Any]) -> str:
    """What stands between the markers: a row for each case, and what the rows amount to."""
    newest = report["codes"][-1]
    cases: dict[tuple[str, str], list[Row]] = {}
    for row in rows_of(newest):
        cases.setdefault((row["model"], row["mesh"]), []).append(row)
    runs = list(cases.values())
    return "\n".join([*markdown_table([_HEADER, *map(_cells, runs)]), "", _amount(runs), "", _origin(newest["runs"])])


def _cells(runs: Sequence[Row]) -> list[str]:
    """The cells of a case, medians of its runs."""
    first = runs[0]
    best = statistics.mode(map(best_other, runs))
    return [
        f"{_NAMES.get(first['model'], first['model'])} {first['mesh']}",
        f"{_median(runs, lambda row: row['methods'][CFP]['samples']['median_ms']):.1f}",
        f"{_median(runs, lambda row: row['methods'][ILP]['samples']['median_ms']):.1f}",
        _ratio_text(runs, ILP),
        _ratio_text(runs, ILP_GIVEN),
        _NAMES.get(best, best),
        _ratio_text(runs, best),
        statistics.mode(map(_found_by, runs)),
        f"{_planning(runs, CFP)}{' with profiles' * any(row.get('known', 0) for row in runs)}, {_planning(runs, ILP)}",
    ]


def _amount(runs: Sequence[Sequence[Row]]) -> str:
    to_ilp = [_median(of_case, lambda row: cfp_by(row, ILP)) for of_case in runs]
    worst = [_median(of_case, lambda row: cfp_by(row, best_other(row))) for of_case in runs]
    to_given = [
        _median(of_case, lambda row: cfp_by(row, ILP_GIVEN)) for of_case in runs if ILP_GIVEN in of_case[0]["methods"]
    ]
    given = f"; {geometric_mean(to_given):.2f} if the ILP has only the mesh as it is given" if to_given else ""
    return (
        f"Over these {len(runs)} cases a step planned by CFP takes {geometric_mean(to_ilp):.2f} of the time of one "
        f"planned by the ILP (geometric mean; {min(to_ilp):.2f} at best, {max(to_ilp):.2f} at worst{given}), and "
        f"{geometric_mean(worst):.2f} of the best other method's ({max(worst):.2f} at worst)."
    )


def _origin(runs: Sequence[dict[str, Any]]) -> str:
    machine = runs[-1]["machine"]
    commands = ", ".join(dict.fromkeys(f"`{run['command']}`" for run in runs))
    dates = ", ".join(dict.fromkeys(run["machine"]["date"] for run in runs))
    versions = machine["versions"]
    return (
        f"{commands}, {dates}: {machine['cores']} cores of {machine['cpu']}, {machine['devices']} (virtual), jax "
        f"{versions['jax']}, alpa {versions['alpa']}."
    )


def _median(runs: Sequence[Row], value: Callable[[Row], float]) -> float:
    return statistics.median(map(value, runs))


def _planning(runs: Sequence[Row], method: str) -> str:
    return f"{_median(runs, lambda row: row['methods'][method]['planning_s']):.0f} s"


def _found_by(row: Row) -> str:
    """Where CFP's plan comes from; older results do not say."""
    plan = row["methods"][CFP].get("plan")
    if plan is None or plan["origin"] is None:
        return "not kept"
    return "search" if plan["origin"] == _SEARCH else f"hand: {plan['name']}"


def _ratio_text(runs: Sequence[Row], method: str) -> str:
    """CFP by a method, with the interval of the run that is in the middle."""
    if method not in runs[0]["methods"]:
        return "not run"
    middle = sorted(runs, key=lambda row: cfp_by(row, method))[len(runs) // 2]["methods"][method]
    if middle["same_program"]:
        return "1, the same program"
    ratio = middle["cfp_ratio"]
    return f"{ratio['paired']:.2f} ({ratio['paired_low']:.2f} to {ratio['paired_high']:.2f})"


def with_section(page: str, text: str) -> str:
    """`page` with `text` between the markers.

    Raises:
        ValueError: the page has not exactly one pair of them.
    """
    if page.count(_BEGIN) != 1 or page.count(_END) != 1:
        raise ValueError(f"the page must have {_BEGIN} and {_END} once each")
    head, _, rest = page.partition(_BEGIN)
    return f"{head}{_BEGIN}\n{text}\n{_END}{rest.partition(_END)[2]}"


def main(argv: Sequence[str] | None = None) -> None:
    """Rewrite the page that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("page", type=Path, help="the README")
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS, help="default: those of jax 0.10.2")
    options = parser.parse_args(argv)
    options.page.write_text(with_section(options.page.read_text(), section(read(options.results))))


if __name__ == "__main__":
    main()
