"""Writes the table against Alpa's ILP into the README.

Takes the README and the results of `python -m benchmarks.cfp_race`; gives back the README with the text between
`<!-- race: begin -->` and `<!-- race: end -->` made anew. Invariants: nothing outside of the markers changes; no number
is there that is not in the results, with the command, the machine and the date that they come from.

    python tools/readme_table.py README.md
"""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results" / "cfp_race-jax0.10.2.json"
_BEGIN, _END = "<!-- race: begin -->", "<!-- race: end -->"
_CFP, _ILP = "cfp", "alpa-ilp"
_HEADER = ("model, mesh", "CFP, ms", "Alpa's ILP, ms", "CFP by it", "best other", "CFP by it", "planning: CFP, ILP")
_NAMES = {
    _ILP: "Alpa's ILP",
    "data-parallel": "data parallel",
    "zero2": "ZeRO-2",
    "zero3": "ZeRO-3",
    "megatron": "Megatron",
    "gpt": "GPT",
    "llama": "LLaMA",
    "moe": "MoE",
    "wide_resnet": "Wide-ResNet",
}


def section(report: dict[str, Any]) -> str:
    """What stands between the markers: a row for each case, and what the rows amount to."""
    results, machine = report["results"], report["machine"]
    ratios = [_ratio(result["methods"][_ILP]) for result in results]
    worst = max(_ratio(result["methods"][_best(result)]) for result in results)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    versions = machine["versions"]
    return "\n".join(
        [
            *("| " + " | ".join(cells) + " |" for cells in (_HEADER, ("---",) * len(_HEADER), *map(_row, results))),
            "",
            f"Over these {len(results)} cases a step planned by CFP takes {mean:.2f} of the time of one planned by the "
            f"ILP (geometric mean; {min(ratios):.2f} at best, {max(ratios):.2f} at worst), and {worst:.2f} of the best "
            f"other method's at worst. `{report['command']}`, {machine['date']}: {machine['cores']} cores of "
            f"{machine['cpu']}, {machine['devices']} (virtual), jax {versions['jax']}, alpa {versions['alpa']}.",
        ]
    )


def _row(result: dict[str, Any]) -> list[str]:
    """The cells of a case."""
    methods = result["methods"]
    best = _best(result)
    return [
        f"{_NAMES.get(result['model'], result['model'])} {result['mesh']}",
        f"{methods[_CFP]['samples']['median_ms']:.1f}",
        f"{methods[_ILP]['samples']['median_ms']:.1f}",
        _ratio_text(methods[_ILP]),
        _NAMES.get(best, best),
        _ratio_text(methods[best]),
        f"{methods[_CFP]['planning_s']:.0f} s, {methods[_ILP]['planning_s']:.0f} s",
    ]


def _best(result: dict[str, Any]) -> str:
    """The method beside which CFP does worst, by other rounds than those that are quoted (as `benchmarks.cfp_race`)."""
    others = {name: method for name, method in result["methods"].items() if name != _CFP}
    return max(others, key=lambda name: _ratio(others[name], "cfp_ratio_of_other_rounds"))


def _ratio(method: dict[str, Any], which: str = "cfp_ratio") -> float:
    """CFP's time by the method's; 1 where their programs are the same."""
    return 1.0 if method["same_program"] else method[which]["paired"]


def _ratio_text(method: dict[str, Any]) -> str:
    if method["same_program"]:
        return "1, the same program"
    ratio = method["cfp_ratio"]
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
    report = json.loads(options.results.read_text())
    options.page.write_text(with_section(options.page.read_text(), section(report)))


if __name__ == "__main__":
    main()
