"""How long CFP's search takes, and how far from proved its plans are: graphs like those of models, and random ones.

Takes numbers of layers, of variables a layer and of choices a variable; searches problems of `cfp_search_graphs`, with
and without a memory budget. Prints a line a case and writes `results/cfp_search-*`. Invariant: each case is searched
several times, the median counts, and a search that met its time limit says by what share of its time its plan could be
beaten.
"""

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from alpa_cfp.search import MemoryBudgetError, SearchProblem, search
from benchmarks import runner
from benchmarks.cfp_search_graphs import SHAPES, make
from benchmarks.runner import Benchmark, one_row

# Share of the way from the least memory of any plan to that of the fastest.
BUDGETS = {"none": None, "medium": 0.5, "tight": 0.05}
DEEP_LAYERS, BAR_S = 96, 2.0
# A gap that is worth telling, as a share of the time.
_MUCH = 0.01
_HEADER = ("graph", "layers", "variables a layer", "choices", "budget", "search, s", "spread", "gap, %", "load")

_TEXT = (
    "One search of problems with random tables in which sharded state costs time; all layers are alike. `chain`: each "
    "variable is joined to the next; `tied`: the first to the last too; `unet`: the first variable of each layer of "
    "the first half to the last of its mirror image; `unet_attention`: so are all, and those of a layer to each other; "
    "`hub`: one more variable is joined to the first of each layer; `star`: to all, by different tables; `lstm`: a "
    "sequence-to-sequence model, unrolled over as many steps as there are layers, each variable of which is joined to "
    "that of the step before, to its weights and, in the decoder, to all steps of the encoder; `random`: as many "
    "variables, all different and joined to 4 others on average; `grid`: a square of them. `medium` and `tight` "
    "budgets are 50% and 5% of the way from the least memory of any plan to that of the fastest one. Medians of "
    "{repeats} runs with a time limit of {limit:.0f} s; `gap` is by how much of its time the plan could be beaten."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that the command line names."""
    parser = runner.parser(
        __doc__, layers=[4, 24, 96], variables=[4, 6], choices=[6, 12, 30], repeats=3, time_limit_s=60.0
    )
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--budgets", nargs="+", choices=BUDGETS, default=list(BUDGETS))
    options = parser.parse_args(argv)
    text = _TEXT.format(repeats=options.repeats, limit=options.time_limit_s)
    return Benchmark("cfp_search", text, _HEADER, one_row(_cells), _verdict).run(_results(options), options)


def _results(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    names = ("shape", "layers", "variables", "choices")
    for sizes in itertools.product(options.shapes, options.layers, options.variables, options.choices):
        problem = make(*sizes)
        for budget in options.budgets:
            found = measure(problem, budget, options.repeats, options.time_limit_s)
            yield {**dict(zip(names, sizes, strict=True)), **found}


def measure(problem: SearchProblem, budget: str, repeats: int, limit_s: float) -> dict[str, Any]:
    """Search one problem `repeats` times."""
    budget_bytes = _budget_bytes(problem, BUDGETS[budget], limit_s)
    samples, plan = [], None
    for _ in range(repeats):
        began = time.perf_counter()
        plan = search(problem, budget_bytes, time_limit_s=limit_s)
        samples.append(time.perf_counter() - began)
    assert plan is not None
    found = {"plan_s": plan.time_s, "gap_s": plan.gap_s, "load_average": os.getloadavg()[0]}
    return {"budget": budget, "budget_bytes": budget_bytes, "samples_s": samples, **found}


def _budget_bytes(problem: SearchProblem, share: float | None, limit_s: float) -> int | None:
    if share is None:
        return None
    fastest = search(problem, None, time_limit_s=limit_s).memory.total
    try:
        search(problem, 0)
    except MemoryBudgetError as error:
        return error.least_bytes + int(share * max(0, fastest - error.least_bytes))
    return 0


def _verdict(results: Sequence[dict[str, Any]]) -> str:
    """Whether the chains keep to the bar, and the slowest of the others."""
    deep = [result for result in results if result["layers"] == DEEP_LAYERS]
    chains = [_median_s(result) for result in deep if result["shape"] == "chain"]
    others = [_median_s(result) for result in deep if result["shape"] != "chain"]
    gaps = [result["gap_s"] / result["plan_s"] for result in results]
    verdicts = [
        f"{sum(gap > 0 for gap in gaps)} are not proved to be the best, {sum(gap > _MUCH for gap in gaps)} not to be "
        f"within {_MUCH:.0%} of it, and the worst to be within {max(gaps):.2%}"
    ]
    if chains:
        held = "yes" if max(chains) <= BAR_S else "NO"
        verdicts.append(f"chains of {DEEP_LAYERS} layers in at most {max(chains):.2f} s, under {BAR_S:.0f} s: {held}")
    if others:
        verdicts.append(f"other graphs of {DEEP_LAYERS} layers in at most {max(others):.2f} s")
    return f"Of {len(results)} cases: {'; '.join(verdicts)}."


def _median_s(result: dict[str, Any]) -> float:
    return statistics.median(result["samples_s"])


def _cells(result: dict[str, Any]) -> list[str]:
    samples = result["samples_s"]
    return [
        *(str(result[name]) for name in ("shape", "layers", "variables", "choices", "budget")),
        f"{_median_s(result):.3f}",
        f"{(max(samples) - min(samples)) / _median_s(result):.2f}",
        f"{100 * result['gap_s'] / result['plan_s']:.2g}",
        f"{result['load_average']:.1f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
