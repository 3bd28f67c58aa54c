"""The modelled seconds of programs on a device that is not here, against those that were measured there.

Takes a file of `device_rates` (`results/devices/`); compiles its programs for the device's kind by the compiler of
`alpa_cfp.targets`, models the seconds of each schedule, and compares. Writes `results/device_predictions-*`. Invariant:
no measurement that the model's constants (`computing.Efficiency`) were fitted to is among those that errors are told
of. Of the chip that they were fitted on, these are the half that `--fit` leaves; of another one, all.

    python -m benchmarks.device_predictions            # needs the plugin: pip install 'alpa_cfp[gpu-target]'
    python -m benchmarks.device_predictions --chip h200
    python -m benchmarks.device_predictions --fit --seed 1

A program is enqueued many times before one waits, so a short one takes what its dispatch takes; the model gives each at
least that. Measured is the mean of the faster half of its samples: an undisturbed run. The compiler that measured tried
kernels on the device, and the one here cannot: products are cuBLAS's here and may be Triton's there.
"""

import json
import random
import re
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from math import log
from pathlib import Path

import jax
import numpy as np
from scipy.optimize import differential_evolution

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.targets.chips import Chip
from alpa_cfp.targets.computing import Efficiency, computing_work, copying_s
from alpa_cfp.targets.hlo_text import ScheduledModule, read_scheduled
from alpa_cfp.targets.target import Target
from alpa_cfp.targets.timeline import walk
from alpa_cfp.targets.topology import compile_for, devices_of
from benchmarks import runner
from benchmarks.device_programs import DeviceProgram, programs
from benchmarks.reports import Row
from benchmarks.runner import Benchmark, one_row

_DEVICES = Path(__file__).resolve().parent / "results" / "devices"
# The chip that the constants of the model were fitted on.
_FITTED_ON = "h100"
_FITTED, _HELD_OUT = "fitted", "held out"
# A program says something of the device if its samples differ by less, and if it takes so many times its dispatch.
_QUIET_SPREAD, _LONG = 0.25, 2.0
# Within these the constants are sought; 64 rows are the smallest tile.
_RANGES = {
    "memory_share": (0.5, 1.0),
    "product_share": (0.5, 1.0),
    "border": (1.0, 64.0),
    "overlap": (0.01, 1.0),
}
# A program that the model misses by more counts as this: the host was busy, or a kernel is one of its own.
_WORST = 0.7
_GENERATIONS, _POPULATION = 25, 8

_TEXT = (
    "Modelled seconds of programs on one {chip} that is not here, against those measured on one: compiled by XLA "
    "without the device, each kernel by a roofline, products by tiles over the cores. {constants} *Long* programs take "
    "more than twice what the dispatch of one takes; of *quiet* ones the samples differ by less than a quarter, too."
)
_HALF_FITTED = (
    "The model's constants were fitted to half of an earlier measurement of 145 of these programs, beside which others "
    "were compiled. The halves here are drawn anew, by chance in each kind, so that some of those held out were among "
    "these."
)
_NONE_FITTED = (
    "The model's constants are as they were fitted on an {fitted_on}, and the chip's figures are the published ones: "
    "nothing was fitted on an {chip}, so that all programs are held out."
)
_HEADER = ("program", "half", "measured", "spread", "modelled", "modelled / measured")


@dataclass(frozen=True, slots=True)
class Case:
    """A program that was measured.

    Attributes:
        kind, name: As `device_programs` has them.
        module: Its schedule here.
        measured_s: Of an execution: the mean of the faster half of the samples.
        median_s: Of all samples.
        spread: Of the samples: the widest difference by the median.
    """

    kind: str
    name: str
    module: ScheduledModule
    measured_s: float
    median_s: float
    spread: float

    @classmethod
    def of(cls, row: Row, module: ScheduledModule) -> "Case":
        """The case of a row of `device_rates`."""
        samples = sorted(row["samples_s"])
        faster_s = statistics.fmean(samples[: (len(samples) + 1) // 2])
        times = row["times"]
        return cls(row["kind"], row["name"], module, faster_s * times, row["median_s"] * times, row["spread"])

    def modelled_s(self, chip: Chip, dispatch_s: float, efficiency: Efficiency) -> float:
        """The seconds by the model; of a short program those of its dispatch."""
        work_of = partial(computing_work, chip=chip, efficiency=efficiency)
        timeline = walk(self.module, work_of, _alone, partial(copying_s, chip=chip, efficiency=efficiency))
        return max(timeline.step_s, dispatch_s)


def _alone(collective: object) -> float:
    raise ValueError(f"a program of one device has {collective}")


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, or fit, as the command line asks."""
    parser = runner.parser(__doc__, seed=0, chip=_FITTED_ON, only="")
    parser.add_argument("--measured", type=Path, help="a file of device_rates (default: what is kept of the chip)")
    parser.add_argument("--texts", type=Path, help="a folder that compiled programs are kept in, and taken from")
    parser.add_argument("--fit", action="store_true", help="fit the constants and print them; writes nothing")
    options = parser.parse_args(argv)
    chip = Chip.named(options.chip)
    rows = [row for row in _report(options.measured or kept_of(chip), chip)["results"] if "error" not in row]
    dispatch_s = next(min(row["samples_s"]) for row in rows if row["kind"] == "dispatch")
    rows = [row for row in rows if row["kind"] != "dispatch" and re.search(options.only, row["name"])]
    is_fitted = options.fit or chip.name == _FITTED_ON
    halves = halves_of(rows, options.seed) if is_fitted else {row["name"]: _HELD_OUT for row in rows}
    cases = compiled(rows, chip, options.texts)
    if options.fit:
        cases = list(cases)
        efficiency = fitted([case for case in cases if halves[case.name] == _FITTED], chip, dispatch_s)
        print("\n".join(f"{each.name} = {getattr(efficiency, each.name):.4g}" for each in fields(efficiency)))
        print(verdict([_result(case, chip, dispatch_s, efficiency, halves) for case in cases]))
        return 0
    results = (_result(case, chip, dispatch_s, Efficiency(), halves) for case in cases)
    return Benchmark(name_of(chip), text_of(chip), _HEADER, one_row(_cells), verdict).run(results, options)


def kept_of(chip: Chip) -> Path:
    """The file of what was measured on a chip, the last one by name if there are several."""
    found = sorted(_DEVICES.glob(f"{chip.name}-jax*.json"))
    if not found:
        raise SystemExit(f"no programs are kept that were measured on {chip.name}: name a file of them by --measured")
    return found[-1]


def _report(measured: Path, chip: Chip) -> Row:
    report = json.loads(measured.read_text())
    if report["device"] != chip.device_kind:
        raise SystemExit(f"{measured.name} is of {report['device']}, and {chip.name} is {chip.device_kind}")
    return report


def name_of(chip: Chip) -> str:
    """The name of the results' files: that of the chip is in it, unless the constants were fitted on it."""
    return "device_predictions" if chip.name == _FITTED_ON else f"device_predictions_{chip.name}"


def text_of(chip: Chip) -> str:
    """What is compared with what, and which programs are held out."""
    constants = _HALF_FITTED if chip.name == _FITTED_ON else _NONE_FITTED
    names = {"chip": chip.name.upper(), "fitted_on": _FITTED_ON.upper()}
    return _TEXT.format(constants=constants.format(**names), **names)


def halves_of(rows: Iterable[Row], seed: int) -> dict[str, str]:
    """Which half each program is in, by name: of each kind half is drawn."""
    names: dict[str, list[str]] = {}
    for row in rows:
        names.setdefault(row["kind"], []).append(row["name"])
    found = dict[str, str]()
    for kind, own in names.items():
        drawn = set(random.Random(f"{seed} {kind}").sample(sorted(own), len(own) // 2))
        found |= {name: _FITTED if name in drawn else _HELD_OUT for name in own}
    return found


def compiled(rows: Sequence[Row], chip: Chip, texts: Path | None) -> Iterator[Case]:
    """Each program with its schedule, compiled for one device of the chip."""
    known, devices = programs(), None
    for row in rows:
        kept = None if texts is None else texts / f"{row['name'].replace(' ', '_')}.hlo"
        if kept is not None and kept.exists():
            text = kept.read_text()
        else:
            devices = devices or devices_of(Target.of(chip, "1x1"))
            text = compile_for(_bytecode(known[row["kind"]][row["name"]]()), devices, one_program_per_device=True).text
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(text)
        yield Case.of(row, read_scheduled(text))


def _bytecode(program: DeviceProgram) -> bytes:
    lowered = jax.jit(program.function).trace(*program.arguments).lower(lowering_platforms=("cuda",))
    return mlir.to_bytecode(lowered.compiler_ir("stablehlo"))


def _result(case: Case, chip: Chip, dispatch_s: float, efficiency: Efficiency, halves: dict[str, str]) -> Row:
    return {
        **{name: getattr(case, name) for name in ("kind", "name", "measured_s", "median_s", "spread")},
        "modelled_s": case.modelled_s(chip, dispatch_s, efficiency),
        "half": halves[case.name],
        "is_long": case.measured_s > _LONG * dispatch_s,
    }


def _cells(result: Row) -> list[str]:
    ratio = result["modelled_s"] / result["measured_s"]
    return [
        result["name"],
        result["half"],
        f"{result['measured_s'] * 1e6:.0f} us",
        f"{result['spread']:.0%}",
        f"{result['modelled_s'] * 1e6:.0f} us",
        f"{ratio:.2f}",
    ]


def verdict(results: Sequence[Row]) -> str:
    """Median errors of the half that was held out, by kind."""
    held = [row for row in results if row["half"] == _HELD_OUT]
    long = [row for row in held if row["is_long"]]
    quiet = [row for row in long if row["spread"] <= _QUIET_SPREAD]
    told = (f"{name}: {_errors(rows)}" for name, rows in (("all", held), ("long", long), ("quiet", quiet)))
    against_median = _errors(held, "median_s")
    return (
        f"Median errors of what was held out. {'. '.join(told)}. Against the medians of all samples: {against_median}."
    )


def _errors(rows: Sequence[Row], measured: str = "measured_s") -> str:
    kinds = dict.fromkeys(row["kind"] for row in rows)
    errors = {
        kind: [abs(row["modelled_s"] / row[measured] - 1) for row in rows if row["kind"] == kind] for kind in kinds
    }
    return ", ".join(f"{kind} {statistics.median(each):.1%} ({len(each)})" for kind, each in errors.items()) or "none"


def fitted(cases: Sequence[Case], chip: Chip, dispatch_s: float) -> Efficiency:
    """The constants under which the logarithms of model and measurement differ least, on long and quiet cases."""
    told = [case for case in cases if case.measured_s > _LONG * dispatch_s and case.spread <= _QUIET_SPREAD]

    def loss(values: np.ndarray) -> float:
        efficiency = Efficiency(**dict(zip(_RANGES, map(float, values), strict=True)))
        off = (abs(log(case.modelled_s(chip, dispatch_s, efficiency) / case.measured_s)) for case in told)
        return statistics.fmean(min(each, _WORST) for each in off)

    # Shares and borders make up for each other, so that there are many valleys.
    bounds = list(_RANGES.values())
    found = differential_evolution(loss, bounds, maxiter=_GENERATIONS, popsize=_POPULATION, rng=0, polish=False)
    return Efficiency(**dict(zip(_RANGES, map(float, found.x), strict=True)))


if __name__ == "__main__":
    sys.exit(main())
