"""Are CFP's plans good? Steps planned by CFP beside Alpa's ILP, data parallelism, ZeRO-2, ZeRO-3 and Megatron by hand.

Takes models and meshes; runs the training step of each method through `alpa.parallelize`, interleaved in random order
in one process, and compares CFP with each other one within the rounds. Prints a line a case and writes
`results/cfp_race-*`. Invariant: the first step of each method gives what the serial run gives.
"""

import argparse
import gc
import math
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from alpa_cfp import CFPOption
from alpa_cfp.bench.case import CFP, ILP, Case, Effort
from alpa_cfp.bench.progress import Progress
from alpa_cfp.bench.running import Comparison, compare, steps_of
from alpa_cfp.bench.timing import Ratio, Samples, ratio
from alpa_cfp.workloads.sizes import SIZES
from benchmarks import machine

BAR = 1.02
COMPARED = (CFP, ILP, "data-parallel", "zero2", "zero3", "megatron")

_TEXT = (
    "Time of a training step (state and batch on the mesh, new state back, dispatch included) through "
    "`alpa.parallelize` by method, interleaved in random order in one process; {copies} copies of each program, since "
    "where arrays lie in memory changes the time of one by some per cent. `planning` is the time until the step is "
    "compiled, for CFP with an empty profile database. Ratios are medians over half of the rounds of CFP's time by the "
    "other's in the same round, with 95% intervals; the best of the others (bold) is chosen by the other half. A "
    "method whose compiled program is CFP's own, byte for byte, is marked `=` and counts as equally fast. "
    "`collectives` are those of one step."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--models", nargs="+", default=["gpt", "llama", "moe", "wide_resnet"])
    parser.add_argument("--meshes", nargs="+", default=["1x4", "1x8", "2x4"])
    parser.add_argument("--rounds", type=int, default=40, help="samples of each copy (default 40)")
    parser.add_argument("--copies", type=int, default=2, help="copies of each program (default 2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--database", type=Path, help="CFP's profiles (default: a new one)")
    parser.add_argument("--name", default="cfp_race", help="of the results' files")
    parser.add_argument("--no-results", action="store_true", help="print only, write no files")
    options = parser.parse_args(argv)
    results = []
    with tempfile.TemporaryDirectory() as directory:
        database = options.database or Path(directory) / "profiles.sqlite"
        for model, mesh in product(options.models, options.meshes):
            effort = Effort(options.rounds, options.copies, seed=options.seed)
            results.append(measure(model, mesh, database, effort))
            print("\n".join(" | ".join(row) for row in _rows(results[-1])), flush=True)
            if not options.no_results:
                text = f"{_TEXT.format(copies=options.copies)}\n\n{_verdict(results)}"
                machine.write(options.name, text, results, _table(results))
            gc.collect()
    print(_verdict(results))
    return 0


def measure(model: str, mesh: str, database: Path, effort: Effort) -> dict[str, Any]:
    """Run one case.

    Raises:
        RuntimeError: a method gives something else than the serial run.
    """
    option = CFPOption(database=database, samples=effort.samples, progress=False)
    with Progress(steps_of(COMPARED, effort)) as progress:
        found = compare(Case(model, mesh, SIZES[model]), COMPARED, effort, option, progress)
    wrong = {each.method: each.difference for each in found.outcomes if not each.is_right}
    if wrong:
        raise RuntimeError(f"{model} {mesh}: not the serial run's: {wrong}")
    return {"model": model, "mesh": mesh, "loss": found.loss, "methods": _methods(found, effort.seed)}


def _methods(found: Comparison, seed: int) -> dict[str, dict[str, Any]]:
    """What is kept of each method, CFP first."""
    own, same = found.outcomes[0].samples, found.outcomes[0].same_as or CFP
    methods = {}
    for outcome in found.outcomes:
        samples = outcome.samples
        if own is None or samples is None:
            raise ValueError("every method that is right has samples")
        methods[outcome.method] = {
            "planning_s": outcome.planning_s,
            "collectives": sum(each.count for each in outcome.traffic),
            "bytes": outcome.memory_bytes,
            "samples": samples.to_json(),
            "same_program": same in (outcome.method, outcome.same_as),
            "cfp_ratio": _ratio(own, samples, seed, slice(1, None, 2)),
            "cfp_ratio_of_other_rounds": _ratio(own, samples, seed, slice(0, None, 2)),
        }
    return methods


def _ratio(of: Samples, to: Samples, seed: int, rounds: slice) -> dict[str, float]:
    return ratio(of.rounds(rounds), to.rounds(rounds), seed=seed).to_json()


def _cfp_by(result: dict[str, Any], name: str, which: str = "cfp_ratio") -> float:
    """How many times longer CFP's step takes than that of a method."""
    other = result["methods"][name]
    return 1.0 if other["same_program"] else Ratio(**other[which]).paired


def _best(result: dict[str, Any]) -> str:
    """The method beside CFP by which CFP does worst, in other rounds than those that are quoted: the fastest of several
    in some rounds was also lucky in them.
    """
    others = (name for name in result["methods"] if name != CFP)
    return max(others, key=lambda name: _cfp_by(result, name, "cfp_ratio_of_other_rounds"))


def _verdict(results: Sequence[dict[str, Any]]) -> str:
    worst = [_cfp_by(result, _best(result)) for result in results]
    within = sum(each <= BAR for each in worst)
    to_ilp = math.exp(sum(math.log(_cfp_by(result, ILP)) for result in results) / len(results))
    return (
        f"Of {len(results)} cases CFP is at most {BAR - 1:.0%} slower than the best of the others in {within}; it "
        f"takes {max(worst):.3f} of the best one's time at worst, and {to_ilp:.3f} of the ILP's in the geometric mean."
    )


def _table(results: Sequence[dict[str, Any]]) -> list[list[str]]:
    header = ["case", "method", "median, ms", "spread", "CFP by it", "planning, s", "MB a device", "collectives"]
    return [header, *(row for result in results for row in _rows(result))]


def _rows(result: dict[str, Any]) -> list[list[str]]:
    best = _best(result)
    rows = []
    for name, method in result["methods"].items():
        by = Ratio(**method["cfp_ratio"])
        mark = "" if name == CFP else "=" if method["same_program"] else by.paired_text
        rows.append(
            [
                f"{result['model']} {result['mesh']}",
                f"**{name}**" if name == best else name,
                f"{method['samples']['median_ms']:.1f}",
                f"{method['samples']['spread']:.0%}",
                mark,
                f"{method['planning_s']:.1f}",
                f"{method['bytes'] / 1e6:.1f}",
                str(method["collectives"]),
            ]
        )
    return rows


if __name__ == "__main__":
    sys.exit(main())
