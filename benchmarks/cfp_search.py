"""How long CFP's search takes: chains, tied ends, U-Net skips and a hub, with and without a memory budget.

Takes numbers of layers, of variables a layer and of choices a variable; searches problems whose tables are drawn at
random (seeded), of layers that are all alike, as those of a model are. Prints a line a case and writes
`results/cfp_search-*`. Invariant: each case is searched several times, the median counts, and a search that met its
time limit says how far from proved its plan is.
"""

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from alpa_cfp.search import Edge, MemoryBudgetError, SearchProblem, Variable, search
from benchmarks import runner
from benchmarks.runner import Benchmark, one_row

SHAPES = ("chain", "tied", "unet", "hub")
# Share of the way from the least memory of any plan to that of the fastest.
BUDGETS = {"none": None, "medium": 0.5, "tight": 0.05}
DEEP_LAYERS, BAR_S = 96, 2.0
_HEADER = ("graph", "layers", "variables a layer", "choices", "budget", "search, s", "spread", "gap, s", "load")

_TEXT = (
    "One search of problems with random tables in which sharded state costs time; all layers are alike. `chain`: each "
    "variable is joined to the next; `tied`: the first to the last too; `unet`: the first variable of each layer of "
    "the first half to the last of its mirror image; `hub`: one more variable is joined to the first of each layer. "
    "`medium` and `tight` budgets are 50% and 5% of the way from the least memory of any plan to that of the fastest "
    "one. Medians of {repeats} runs with a time limit of {limit:.0f} s; `gap` is by how much the plan could be beaten."
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


def make(shape: str, layers: int, variables: int, choices: int, seed: int = 0) -> SearchProblem:
    """A problem of one of `SHAPES`; times in seconds and sizes in bytes are those of a large model's layers."""
    rng = np.random.default_rng(seed)
    kinds = [_tables(rng, choices) for _ in range(variables)]
    steps = [_times(rng, choices) for _ in range(variables)]
    count = layers * variables
    made = [Variable(f"{i}", *kinds[i % variables]) for i in range(count)]
    edges = [Edge(f"{i}", f"{i + 1}", steps[i % variables]) for i in range(count - 1)]
    skip = _times(rng, choices)
    if shape == "tied":
        edges.append(Edge("0", f"{count - 1}", skip))
    elif shape == "unet":
        starts = (layer * variables for layer in range(layers // 2))
        edges += [Edge(f"{start}", f"{count - 1 - start}", skip) for start in starts]
    elif shape == "hub":
        made.append(Variable("hub", *_tables(rng, choices)))
        edges += [Edge(f"{layer * variables}", "hub", skip) for layer in range(layers)]
    return SearchProblem(tuple(made), tuple(edges))


def _tables(rng: np.random.Generator, choices: int) -> tuple[np.ndarray, ...]:
    """Seconds, state, saved and transient bytes: what is sharded further takes less memory and more time."""
    sharded = rng.uniform(0, 1, choices)
    return (
        (1 + 2 * sharded + rng.uniform(0, 0.5, choices)) * 1e-3,
        ((1 - sharded) * 2e8 + rng.uniform(0, 2e7, choices)).round(),
        ((1 - rng.uniform(0, 1, choices) * sharded) * 1e8).round(),
        (rng.uniform(0.2, 1, choices) * 3e8).round(),
    )


def _times(rng: np.random.Generator, choices: int) -> np.ndarray:
    """Seconds of resharding; nearly a third of the pairs need none."""
    return np.where(rng.random((choices, choices)) < 0.3, 0.0, rng.uniform(0, 1e-3, (choices, choices)))


def measure(problem: SearchProblem, budget: str, repeats: int, limit_s: float) -> dict[str, Any]:
    """Search one problem `repeats` times."""
    budget_bytes = _budget_bytes(problem, BUDGETS[budget])
    samples, gap = [], float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        gap = search(problem, budget_bytes, time_limit_s=limit_s).gap_s
        samples.append(time.perf_counter() - began)
    load = os.getloadavg()[0]
    return {"budget": budget, "budget_bytes": budget_bytes, "samples_s": samples, "gap_s": gap, "load_average": load}


def _budget_bytes(problem: SearchProblem, share: float | None) -> int | None:
    if share is None:
        return None
    fastest = search(problem, None).memory.total
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
    verdicts = [f"{sum(result['gap_s'] > 0 for result in results)} met their time limit"]
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
        f"{result['gap_s']:.2g}",
        f"{result['load_average']:.1f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
