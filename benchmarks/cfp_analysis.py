"""How CFP's analysis grows with the depth of a model: seconds from StableHLO to segments, ops, blocks, kinds.

Takes numbers of layers; analyses a whole training step of GPT at the sizes of Alpa's own benchmark, of which only
shapes exist. Prints a line a case and writes `results/cfp_analysis-*`. Invariant: each case is analysed several times,
and the median counts.
"""

import dataclasses
import itertools
import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from alpa_cfp.analysis.blocks import find_blocks
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.analysis.segments import Segments, find_segments
from benchmarks import runner
from benchmarks.abstract_gpt import Sizes, training_step
from benchmarks.runner import Benchmark, one_row

REFERENCE_LAYERS, REFERENCE_BAR_S = 24, 5.0
DEEP_LAYERS, GROWTH_BAR = 96, 4.5
_PHASES = ("read", "blocks", "segments")
_HEADER = (
    *("layers", "ops", "blocks", "segments", "kinds"),
    *(f"{phase}, s" for phase in (*_PHASES, "all")),
    *("spread", "load"),
)

_TEXT = (
    "From the StableHLO of a whole training step of GPT as in Alpa's `benchmark/alpa` (hidden {hidden}, heads {heads}, "
    "sequence {sequence}, vocabulary {vocabulary}, micro-batch {micro_batch}, AdamW) to segments: `read` runs Shardy's "
    "pass that gives each op its sharding rule and makes the graph, `blocks` finds the ParallelBlocks, `segments` what "
    "repeats. Medians of {repeats} runs; `spread` is the distance of the slowest and the fastest over the median."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that the command line names."""
    sizes = {field.name: field.default for field in dataclasses.fields(Sizes)[1:]}
    options = runner.parser(__doc__, layers=[4, 24, 48, 96], repeats=5, **sizes).parse_args(argv)
    sizes = {name: getattr(options, name) for name in sizes}
    text = _TEXT.format(repeats=options.repeats, **sizes)
    results = (measure(Sizes(layers, **sizes), options.repeats) for layers in options.layers)
    return Benchmark("cfp_analysis", text, _HEADER, one_row(_cells), _verdict).run(results, options)


def measure(sizes: Sizes, repeats: int) -> dict[str, Any]:
    """Analyse one program `repeats` times."""
    bytecode = training_step(sizes).get_module().bytecode
    samples, segments = zip(*(_analysed(bytecode) for _ in range(repeats)), strict=True)
    found: Segments = segments[-1]
    return {
        **dataclasses.asdict(sizes),
        "samples_s": list(samples),
        "ops": len(found.blocks.graph.ops),
        "blocks": len(found.blocks.blocks),
        "segments": len(found.segments),
        "kinds": len(found.kinds),
        "load_average": os.getloadavg()[0],
    }


def _analysed(bytecode: bytes) -> tuple[dict[str, float], Segments]:
    """The seconds of each phase, and what was found."""
    times = [time.perf_counter()]
    graph = read_graph(bytecode)
    times.append(time.perf_counter())
    blocks = find_blocks(graph)
    times.append(time.perf_counter())
    segments = find_segments(blocks)
    times.append(time.perf_counter())
    phases = (after - before for before, after in itertools.pairwise(times))
    return {**dict(zip(_PHASES, phases, strict=True)), "all": times[-1] - times[0]}, segments


def _median_s(result: dict[str, Any], phase: str = "all") -> float:
    return statistics.median(sample[phase] for sample in result["samples_s"])


def _verdict(results: Sequence[dict[str, Any]]) -> str:
    """Which bars the medians keep to."""
    median_s = {result["layers"]: _median_s(result) for result in results}
    verdicts = [f"kinds of segments: {', '.join(str(result['kinds']) for result in results)}"]
    reference_s, deep_s = median_s.get(REFERENCE_LAYERS), median_s.get(DEEP_LAYERS)
    if reference_s is not None:
        held = _yes(reference_s <= REFERENCE_BAR_S)
        verdicts.append(f"{REFERENCE_LAYERS} layers in {reference_s:.2f} s, at most {REFERENCE_BAR_S:.0f} s: {held}")
    if reference_s is not None and deep_s is not None:
        growth = deep_s / reference_s
        held = _yes(growth <= GROWTH_BAR)
        verdicts.append(f"{DEEP_LAYERS} layers take {growth:.2f} times as long, at most {GROWTH_BAR}: {held}")
    return f"Of {len(results)} cases: {'; '.join(verdicts)}."


def _yes(held: bool) -> str:
    return "yes" if held else "NO"


def _cells(result: dict[str, Any]) -> list[str]:
    whole = [sample["all"] for sample in result["samples_s"]]
    return [
        *(str(result[name]) for name in ("layers", "ops", "blocks", "segments", "kinds")),
        *(f"{_median_s(result, phase):.2f}" for phase in (*_PHASES, "all")),
        f"{(max(whole) - min(whole)) / statistics.median(whole):.2f}",
        f"{result['load_average']:.1f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
