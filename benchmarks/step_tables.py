"""Is the order of tensor, data and pipeline parallel plans, by the model of targets, the one that others measured?

Takes `step_numbers.toml`, published times of training steps with their sources; makes each step anew, plans it by hand
as its row says, compiles it for the row's devices and models its seconds (`step_models.py`). Prints a line a row, the
share of pairs of plans whose modelled order is the measured one, and the errors; writes `results/step_tables-*`.
Invariants: nothing runs on a device; no constant of the model is fitted to these rows; a row that cannot be made is
listed with its reason.

    python -m benchmarks.step_tables --sources SimuMax NeuSight    # pip install 'alpa_cfp[gpu-target]'
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence

import jax

from alpa_cfp.errors import CFPError
from alpa_cfp.targets.modelled_program import MODEL
from benchmarks import runner
from benchmarks.reports import Row
from benchmarks.runner import Benchmark, one_row
from benchmarks.step_models import ModelledStep, modelled_step
from benchmarks.step_numbers import (
    DIFFERS,
    Compared,
    LeftOut,
    Measured,
    Pair,
    Parallelism,
    agreement,
    fastest,
    left_out,
    measured,
    pairs,
)

_GOAL = 0.9
# How many pairs in another order the summary tells.
_SHOWN = 12
_TEXT = (
    "Published times of training steps against the same steps made here, planned by hand as the source says, compiled "
    f"for the devices by XLA and **modelled** (model {MODEL}); nothing has run, and nothing of the model is fitted to "
    "these rows. T, D and P are the sizes of tensor, data and pipeline parallelism. `modelled` is (micro-batches + "
    "stages - 1) x (the slowest stage's micro-batch + its sends) + the sum of gradients + the update. `micro-batch` is "
    "that of the slowest stage, with `communicating` and what of it is `hidden`, extrapolated on a line from 2 and 4 "
    "layers. `by stages` has each stage as long as it is: all stages + (micro-batches - 1) x the slowest. Where a plan "
    "was measured with several micro-batches, it is compared with its fastest unless told. Pairs are plans of one "
    "model on one kind of devices, with one batch or one number of micro-batches, with unlike T, D or P, whose "
    f"measured times a sample differ by more than {DIFFERS:.0%}. The measured runs are PyTorch's, with kernels of "
    "their own; attention is not fused here, and is in SimuMax's runs."
)
_HEADER = (
    *("source", "model", "devices", "step", "plan", "micro-batch, samples", "measured, ms", "modelled, ms", "error"),
    "by stages, ms",
    *("micro-batch, ms", "communicating, ms", "hidden, ms", "sends, ms", "sum of gradients, ms", "update, ms", "notes"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Model every row of the file, or those of some sources."""
    rows, others = measured(), left_out()
    sources = tuple(dict.fromkeys(row.source for row in rows))
    parser = runner.parser(__doc__)
    parser.add_argument("--sources", nargs="+", default=sources, choices=sources, metavar="SOURCE", help="default: all")
    choices = ("fastest", "all")
    parser.add_argument("--micro-batches", default=choices[0], choices=choices, help="of each plan (default: fastest)")
    parser.add_argument("--pairs", action="store_true", help="print every pair, too")
    options = parser.parse_args(argv)
    results = list[Row]()

    def found() -> Iterator[Row]:
        for result in _results(rows, others, options):
            results.append(result)
            yield result

    code = Benchmark("step_tables", _TEXT, _HEADER, one_row(_cells), verdict).run(found(), options)
    if options.pairs:
        print("\n".join(f"{'right' if pair.agrees else 'wrong'} {_said(pair)}" for pair in _pairs_of(results)))
    return code


def _results(rows: Sequence[Measured], others: Sequence[LeftOut], options: argparse.Namespace) -> Iterator[Row]:
    for source in options.sources:
        own = [row for row in rows if row.source == source]
        chosen = own if options.micro_batches == "all" else fastest(own)
        yield from map(_result, chosen)
        if len(chosen) < len(own):
            what, why = "plans with other micro-batches", "slower than with the micro-batch that is compared"
            others = [*others, LeftOut(source, own[0].address, what, len(own) - len(chosen), why)]
    for each in others:
        if each.source in options.sources:
            fields = {name: getattr(each, name) for name in ("source", "address", "what", "rows")}
            yield fields | {"failure": each.reason}


def _result(row: Measured) -> Row:
    started = time.perf_counter()
    result: Row = {
        "source": row.source,
        "address": row.address,
        "model": row.model.name,
        "target": row.target,
        "step": row.step,
        "parallelism": [row.parallelism.tensor, row.parallelism.data, row.parallelism.pipeline],
        "micro_batch": row.micro_batch,
        "micro_batches": row.micro_batches,
        "batch": row.batch,
        "measured_s": row.seconds,
        "failure": row.problem(),
    }
    if result["failure"]:
        return result
    try:
        found = modelled_step(row)
    except (CFPError, jax.errors.JaxRuntimeError) as error:
        return result | {"failure": f"{type(error).__name__}: {error}".partition("\n")[0]}
    return result | _modelled(found) | {"made_s": time.perf_counter() - started}


def _modelled(found: ModelledStep) -> Row:
    part = found.micro_batch
    return {
        "modelled_s": found.step_s,
        "by_stages_s": found.by_stages_s,
        "micro_batch_s": part.step_s,
        "computing_s": part.computing_s,
        "communicating_s": part.communicating_s,
        "hidden_s": part.hidden_s,
        "sends_s": found.sends_s,
        "sum_s": found.sum_s,
        "update_s": found.update_s,
        "compile_s": part.compile_s,
    }


def verdict(rows: Sequence[Row]) -> str:
    """The share of pairs in the measured order, by source and by model, the pairs in another order, and the errors."""
    made = [row for row in rows if "modelled_s" in row]
    if not made:
        return "No row was made."
    by_stages = agreement(_pairs_of([row | {"modelled_s": row["by_stages_s"]} for row in made]))
    words = [_shares(made)]
    if by_stages is not None:
        words.append(f"With each stage as long as it is: {by_stages:.1%}.")
    for source in dict.fromkeys(row["source"] for row in made):
        own = [row for row in made if row["source"] == source]
        words.append(f"{source}: {_shares(own)} {_errors(own)}")
        for key in dict.fromkeys((row["model"], row["target"]) for row in own):
            of_model = [row for row in own if (row["model"], row["target"]) == key]
            anywhere = pairs([_compared(row) for row in of_model])
            beyond = agreement(anywhere)
            share = "" if beyond is None else f" (any batch, by sample: {beyond:.0%} of {len(anywhere)})"
            words.append(f"{key[0]} on {key[1]}: {_shares(of_model)[:-1]}{share}.")
    wrong = [pair for pair in _pairs_of(made) if not pair.agrees]
    if wrong:
        worst = sorted(wrong, key=lambda pair: -pair.measured)[:_SHOWN]
        words.append(f"In another order, the furthest apart first: {'; '.join(map(_said, worst))}.")
    return " ".join(words)


def _shares(rows: Sequence[Row]) -> str:
    found = _pairs_of(rows)
    share = agreement(found)
    if share is None:
        return f"no pair differs by more than {DIFFERS:.0%}."
    held = "held" if share >= _GOAL else "missed"
    right = sum(pair.agrees for pair in found)
    return f"{right} of {len(found)} pairs ({share:.1%}) are in the measured order (goal of {_GOAL:.0%}: {held})."


def _errors(rows: Sequence[Row]) -> str:
    """How far off times are, and their ratios in pairs."""
    errors = [row["modelled_s"] / row["measured_s"] - 1 for row in rows]
    ratios = [abs(pair.modelled / pair.measured - 1) for pair in _pairs_of(rows)]
    ratio = f", of the ratio of a pair {statistics.median(ratios):.0%}" if ratios else ""
    return (
        f"Median error of the step's time {statistics.median(map(abs, errors)):.0%} ({min(errors):+.0%} to "
        f"{max(errors):+.0%}, median {statistics.median(errors):+.0%}){ratio}."
    )


def _pairs_of(rows: Sequence[Row]) -> list[Pair]:
    """The pairs of all rows that may be compared, group by group."""
    groups: dict[tuple[str, ...], list[Compared]] = {}
    for row in rows:
        if "modelled_s" in row:
            key = tuple(row[name] for name in ("source", "model", "target", "step"))
            groups.setdefault(key, []).append(_compared(row))
    return [pair for plans in groups.values() for pair in pairs(plans)]


def _compared(row: Row) -> Compared:
    sizes = Parallelism(*row["parallelism"])
    name = f"{row['model']} on {row['target']}, {row['step']}, {sizes}, micro-batch {row['micro_batch']}"
    return Compared(sizes, name, row["measured_s"] / row["batch"], row["modelled_s"] / row["batch"])


def _said(pair: Pair) -> str:
    faster = pair.faster.split(", ")[-2:]
    return f"{pair.slower} / {', '.join(faster)}: measured {pair.measured:.2f}, modelled {pair.modelled:.2f}"


def _cells(row: Row) -> list[str]:
    source = f"[{row['source']}]({row['address']})"
    if "measured_s" not in row:
        return [source, f"{row['what']} ({row['rows']} rows)", *[""] * (len(_HEADER) - 3), row["failure"]]
    sizes = Parallelism(*row["parallelism"])
    cells = [source, row["model"], row["target"], row["step"], str(sizes), str(row["micro_batch"])]
    cells.append(f"{row['measured_s'] * 1e3:.1f}")
    if "modelled_s" not in row:
        return [*cells, *[""] * (len(_HEADER) - len(cells) - 1), row["failure"]]
    parts = ("communicating_s", "hidden_s", "sends_s", "sum_s", "update_s")
    return [
        *cells,
        f"{row['modelled_s'] * 1e3:.1f}",
        f"{row['modelled_s'] / row['measured_s'] - 1:+.0%}",
        f"{row['by_stages_s'] * 1e3:.1f}",
        f"{row['micro_batch_s'] * 1e3:.1f}",
        # Sums of floats: what is hidden may be a little below zero.
        *(f"{abs(row[name]) * 1e3:.1f}" for name in parts),
        "",
    ]


if __name__ == "__main__":
    sys.exit(main())
