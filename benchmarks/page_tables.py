"""Writes the tables against Alpa's ILP into the pages: a row for each case, and what the rows amount to.

Takes pages and the results of `python -m benchmarks.cfp_race`; gives back each page with the text between its markers,
`<!-- NAME: begin -->` and `<!-- NAME: end -->`, made anew: `race` has a row for each case (docs/benchmarks.md), `race
summary` has the means (README.md). Each case stands there as the last code that it was measured with did it, with the
medians of that code's runs, and with their date. Invariants: nothing outside of the markers changes; no number is there
that is not in the results, with the command, the machine and the date that they come from; what was measured before the
ILP had all shapes of the mesh is no ratio to it.

    python -m benchmarks.page_tables README.md docs/benchmarks.md
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alpa_cfp_bench.case import CFP, ILP, ILP_GIVEN
from benchmarks.race_results import best_other, cfp_by, geometric_mean
from benchmarks.reports import Row, commands_of, markdown_table, newest_of_cases, read

RESULTS = Path(__file__).resolve().parent / "results" / "cfp_race-jax0.10.2.json"
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
    "date",
)
_SUMMARY_HEADER = ("CFP's step time divided by that of", "geometric mean", "range", "cases")
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
    "mlp": "MLP",
    "mlp_wide": "MLP, wide",
    "gpt_wide": "GPT, wide",
    "gpt_vocabulary": "GPT, large vocabulary",
    "llama_long": "LLaMA, long sequences",
    "t5": "T5",
    "vit": "ViT",
    "unet": "U-Net",
    "lstm": "LSTM",
    "gpt_bf16": "GPT, bfloat16",
}
_SEARCH, _NOT_RUN = "search", "not run"


def section(report: dict[str, Any]) -> str:
    """A row for each case, and what the rows amount to."""
    found = _cases(report)
    return "\n".join([*markdown_table([_HEADER, *map(_cells, found)]), "", _amount(found), "", _origin(found)])


def summary(report: dict[str, Any]) -> str:
    """A row for each method that CFP is compared with, over all cases, and where the plans come from."""
    found = _cases(report)
    ratios = {"the fastest other method of each case": [_by_best(case.rows) for case in found]}
    if fair := _fair(found):
        ratios["Alpa's ILP, the best of all mesh shapes"] = [_by(rows, ILP) for rows in fair]
        ratios["Alpa's ILP, on the mesh as given"] = [_by(rows, ILP_GIVEN) for rows in fair]
    rows = [
        (name, f"{geometric_mean(of):.2f}", f"{min(of):.2f} to {max(of):.2f}", str(len(of)))
        for name, of in ratios.items()
    ]
    return "\n".join([*markdown_table([_SUMMARY_HEADER, *rows]), "", _whose(found).strip(), "", _origin(found)])


SECTIONS = {"race": section, "race summary": summary}


def _cases(report: dict[str, Any]) -> list["_Runs"]:
    return [
        _Runs([_with_given(row) for row, _ in case], [run for _, run in case])
        for case in newest_of_cases(report, ("model", "mesh"))
    ]


@dataclass(frozen=True, slots=True)
class _Runs:
    """The rows of a case in the runs of one version of the code, and the run of each row."""

    rows: list[Row]
    runs: list[dict[str, Any]]


def _with_given(row: Row) -> Row:
    """Older results have the ILP on the mesh as it is given alone, by the name that all shapes have now."""
    methods = dict(row["methods"])
    if ILP_GIVEN not in methods:
        methods[ILP_GIVEN] = methods.pop(ILP)
    return row | {"methods": methods}


def _cells(case: _Runs) -> list[str]:
    """The cells of a case, medians of its runs."""
    rows, first = case.rows, case.rows[0]
    best = statistics.mode(map(best_other, rows))
    return [
        f"{_NAMES.get(first['model'], first['model'])} {first['mesh']}",
        _step_text(rows, CFP),
        _step_text(rows, ILP),
        _ratio_text(rows, ILP),
        _ratio_text(rows, ILP_GIVEN),
        _NAMES.get(best, best),
        _ratio_text(rows, best),
        statistics.mode(map(_found_by, rows)),
        f"{_planning(rows, CFP)}{' with profiles' * any(row.get('known', 0) for row in rows)}, "
        f"{_planning(rows, ILP if ILP in first['methods'] else ILP_GIVEN)}",
        case.runs[-1]["machine"]["date"].split()[0],
    ]


def _amount(cases: Sequence[_Runs]) -> str:
    worst = [_by_best(case.rows) for case in cases]
    said = (
        f"Over these {len(cases)} cases a step planned by CFP takes {geometric_mean(worst):.2f} of the time of the "
        f"best other method's (geometric mean; {max(worst):.2f} at worst)."
    )
    if fair := _fair(cases):
        to_ilp, to_given = ([_by(rows, method) for rows in fair] for method in (ILP, ILP_GIVEN))
        said += (
            f" Over the {len(fair)} cases in which the ILP had all shapes of the mesh, it takes "
            f"{geometric_mean(to_ilp):.2f} of the time of the ILP's ({min(to_ilp):.2f} to {max(to_ilp):.2f}), and "
            f"{geometric_mean(to_given):.2f} if the ILP has only the mesh as it is given."
        )
    return said + _whose(cases)


def _whose(cases: Sequence[_Runs]) -> str:
    """How many plans are the search's; nothing if no result says so."""
    found = [statistics.mode(map(_found_by, case.rows)) for case in cases]
    by_hand = sum(each.startswith("hand") for each in found)
    if not by_hand:
        return ""
    return (
        f" In {by_hand} of {found.count(_SEARCH) + by_hand} cases the selected plan is a hand-made baseline that CFP "
        f"times beside its own plans; in {found.count(_SEARCH)} it comes from CFP's search."
    )


def _fair(cases: Sequence[_Runs]) -> list[list[Row]]:
    """The rows of the cases in which the ILP had all shapes of the mesh."""
    return [case.rows for case in cases if ILP in case.rows[0]["methods"]]


def _by(rows: Sequence[Row], method: str) -> float:
    return _median(rows, lambda row: cfp_by(row, method))


def _by_best(rows: Sequence[Row]) -> float:
    return _median(rows, lambda row: cfp_by(row, best_other(row)))


def _origin(cases: Sequence[_Runs]) -> str:
    runs = [run for case in cases for run in case.runs]
    commands = ", ".join(f"`{command}`" for command in commands_of(runs))
    machines = ", ".join(dict.fromkeys(_machine(run["machine"]) for run in runs))
    return f"{commands}: {machines}."


def _machine(machine: dict[str, Any]) -> str:
    versions = machine["versions"]
    return (
        f"{machine['cores']} cores of {machine['cpu']}, {machine['devices']} (virtual), jax {versions['jax']}, alpa "
        f"{versions['alpa']}"
    )


def _median(runs: Sequence[Row], value: Callable[[Row], float]) -> float:
    return statistics.median(map(value, runs))


def _step_text(runs: Sequence[Row], method: str) -> str:
    if method not in runs[0]["methods"]:
        return _NOT_RUN
    return f"{_median(runs, lambda row: row['methods'][method]['samples']['median_ms']):.1f}"


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
        return _NOT_RUN
    middle = sorted(runs, key=lambda row: cfp_by(row, method))[len(runs) // 2]["methods"][method]
    if middle["same_program"]:
        return "1, the same program"
    ratio = middle["cfp_ratio"]
    return f"{ratio['paired']:.2f} ({ratio['paired_low']:.2f} to {ratio['paired_high']:.2f})"


def with_section(page: str, name: str, text: str) -> str:
    """`page` with `text` between the markers of that name.

    Raises:
        ValueError: the page has not exactly one pair of them.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page must have {begin} and {end} once each")
    head, _, rest = page.partition(begin)
    return f"{head}{begin}\n{text}\n{end}{rest.partition(end)[2]}"


def with_sections(page: str, report: dict[str, Any]) -> str:
    """`page` with each of its sections made anew.

    Raises:
        ValueError: the page has none, or one twice.
    """
    names = [name for name in SECTIONS if f"<!-- {name}: begin -->" in page]
    if not names:
        raise ValueError(f"the page must have <!-- NAME: begin --> of one of {', '.join(SECTIONS)}")
    for name in names:
        page = with_section(page, name, SECTIONS[name](report))
    return page


def main(argv: Sequence[str] | None = None) -> None:
    """Rewrite the pages that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("pages", type=Path, nargs="+", help="README.md, docs/benchmarks.md")
    parser.add_argument("--results", type=Path, default=RESULTS, help="default: those of jax 0.10.2")
    options = parser.parse_args(argv)
    report = read(options.results)
    for page in options.pages:
        page.write_text(with_sections(page.read_text(), report))


if __name__ == "__main__":
    main()
