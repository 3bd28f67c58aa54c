"""Writes the table against Alpa's ILP into the README.

Takes the README and the results of `python -m benchmarks.cfp_race`; gives back the README with the text between
`<!-- race: begin -->` and `<!-- race: end -->` made anew. Each case stands there as the last code that it was measured
with did it, with the medians of that code's runs, and with their date. Invariants: nothing outside of the markers
changes; no number is there that is not in the results, with the command, the machine and the date that they come from;
what was measured before the ILP had all shapes of the mesh is no ratio to it.

    python -m benchmarks.readme_table README.md
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
    "date",
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
    """What stands between the markers: a row for each case, and what the rows amount to."""
    found = [
        _Runs([_with_given(row) for row, _ in case], [run for _, run in case])
        for case in newest_of_cases(report, ("model", "mesh"))
    ]
    return "\n".join([*markdown_table([_HEADER, *map(_cells, found)]), "", _amount(found), "", _origin(found)])


@dataclass(frozen=True, slots=True)
class _Runs:
    """What the runs of one code have of a case: the rows, and for each the run."""

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
    worst = [_median(case.rows, lambda row: cfp_by(row, best_other(row))) for case in cases]
    said = (
        f"Over these {len(cases)} cases a step planned by CFP takes {geometric_mean(worst):.2f} of the time of the "
        f"best other method's (geometric mean; {max(worst):.2f} at worst)."
    )
    fair = [case.rows for case in cases if ILP in case.rows[0]["methods"]]
    if fair:
        to_ilp, to_given = ([_median(rows, lambda row, m=m: cfp_by(row, m)) for rows in fair] for m in (ILP, ILP_GIVEN))
        said += (
            f" Over the {len(fair)} cases in which the ILP had all shapes of the mesh, it takes "
            f"{geometric_mean(to_ilp):.2f} of the time of the ILP's ({min(to_ilp):.2f} to {max(to_ilp):.2f}), and "
            f"{geometric_mean(to_given):.2f} if the ILP has only the mesh as it is given."
        )
    found = [statistics.mode(map(_found_by, case.rows)) for case in cases]
    by_hand = sum(each.startswith("hand") for each in found)
    if by_hand:
        said += (
            f" In {found.count(_SEARCH)} of the {found.count(_SEARCH) + by_hand} cases that say so the plan is one of "
            f"CFP's search; in {by_hand} it is one made by hand, which CFP runs beside its own."
        )
    return said


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
