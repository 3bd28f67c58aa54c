"""Are pipelines with CFP inside planned fast, and are they fast? On two nodes of two devices.

Takes numbers of layers of a GPT, and models of the size that `alpa-cfp bench` has for them. Each case is one
`alpa-cfp bench --method pipeshard` in a process of its own, with a time limit, on a Ray cluster that is started for it:
alpa chooses the stages by what it measures of them, with the ILP and with CFP inside, and by what CFP composes. The
nodes offer the devices of all three pipelines, so that their steps are timed in turn in one process. Writes
`results/pipelines-*` case by case. Invariant: each case begins with an empty profile database.

A model is cut into two layers unless `--pipeline-layers` says otherwise: four devices for at most two stages, so each
stage has some to be planned for. With four layers or more alpa may give each stage one device, where a planner of what
is inside stages has nothing to decide; what is said of such a case says so.
"""

import argparse
import json
import math
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from alpa_cfp_bench.case import CFP, COMPOSED, DP_PIPELINE, ILP, ILP_AGAIN, INTER_OP
from alpa_cfp_bench.text import layers_text, shape_text
from alpa_cfp_bench.workloads.sizes import SIZES
from benchmarks import machine, reports, runner
from benchmarks.ray_clusters import cluster

_HOSTS, _DEVICES = 2, 2
# Alpa's workers and Ray's own have so many of each node.
_CPUS = 4
_END_S = 60.0
# Into how many layers models are cut: fewer than devices, so that stages have several.
_USUAL = 2
_VOCABULARY = 256
_PROGRAMS = "programs_to_choose"
_KEYS = ("model", "layers", "pipeline_layers", "hidden", "sequence", "micro_batches")

_RIVALS = [DP_PIPELINE, INTER_OP]

# The rows of one planning of a case, by their methods.
_Planning = dict[str, dict[str, Any]]

_TEXT = (
    "Pipelines on a Ray cluster of 2 nodes with 2 virtual CPU devices each, of which alpa chooses the stages: "
    f"by what it measures of candidate stages, with the ILP ({ILP}) and with CFP ({CFP}) inside, and by what CFP puts "
    f"together from profiles of segments ({COMPOSED}). Size is the hidden size and the length of sequences, where they "
    "are not those of `alpa-cfp bench`. Planning is until the pipeline is compiled and its meshes are there, with an "
    "empty profile database; of it alpa compiles and times candidate stages for `stages`, and CFP plans for `CFP`. "
    "Choosing stages is these two; the rest, tracing, compiling and launching the pipeline, is much the same for all. "
    "`programs` are those that alpa compiled of candidate stages, and those that CFP compiled and timed before they "
    "were chosen. A step is the median of so many rounds, all pipelines in one process and in random order, with its "
    "ratio to that of the ILP's and the 95% interval; predicted is what the choice of stages took it to cost. Where a "
    "case was planned several times, each has rows of its own; what is said of the case is the median of all. "
    f"{ILP_AGAIN} is the ILP's pipeline planned once more: its ratio says what two pipelines of one planner differ by. "
    "Which pipeline is made first differs from planning to planning. "
    f"{DP_PIPELINE} has data parallelism inside of stages, {INTER_OP} one device a stage: alpa's pipelines without a "
    "planner of what is inside."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that the command line names."""
    options = _parser().parse_args(argv)
    rows: list[dict[str, Any]] = []
    for case in _cases(options):
        for number in range(1, options.plannings + 1):
            rows += [{**row, "planning": number} for row in measure(case, options, number)]
        table = _table(rows)
        print("\n".join(reports.markdown_table(table)), *verdicts(rows), sep="\n", flush=True)
        if not options.no_results:
            machine.write("pipelines", _TEXT, rows, table, lambda every: "\n\n".join(verdicts(every)))
    return 0


def _cases(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The cases, with the keys `_KEYS`; GPTs of different depths first."""
    wide = (options.hidden, options.sequence)
    cut = options.pipeline_layers or (_HOSTS * _DEVICES if options.rivals else _USUAL)
    deep = [("gpt", layers, cut, *wide) for layers in options.layers]
    usual = [(model, SIZES[model].layers, cut, 0, 0) for model in options.models]
    return [dict(zip(_KEYS, (*case, options.micro_batches), strict=True)) for case in (*deep, *usual)]


def _methods(options: argparse.Namespace, number: int) -> list[str]:
    """The methods in an order that rotates with the run, because the placement of a pipeline affects its time."""
    named = [CFP, *([] if options.without_ilp else [ILP]), *([ILP_AGAIN] if options.again else [])]
    named += _RIVALS if options.rivals else []
    first = (number - 1) % len(named)
    return named[first:] + named[:first]


def measure(case: dict[str, Any], options: argparse.Namespace, number: int) -> list[dict[str, Any]]:
    """Run one case, for this time; gives a row a method, or one that says why there is none."""
    size = f"batch={options.batch} hidden={case['hidden']} layers={case['layers']} sequence={case['sequence']}"
    sizes = f"--size {size} vocabulary={_VOCABULARY}" if case["hidden"] else ""
    methods = _methods(options, number)
    pipelines = len(methods) + 1  # cfp is two
    with (
        tempfile.TemporaryDirectory() as folder,
        cluster(*[pipelines * _DEVICES] * _HOSTS, cpus=_CPUS + pipelines) as nodes,
    ):
        kept = Path(folder) / "result.json"
        words = (
            f"bench --method pipeshard --ray {nodes.address} --hosts {_HOSTS} --devices-per-host {_DEVICES} "
            f"--mesh {_HOSTS}x{_DEVICES} --model {case['model']} {sizes} --micro-batches {case['micro_batches']} "
            f"--stages auto --stage-costs both --pipeline-layers {case['pipeline_layers']} --rounds {options.rounds} "
            f"--methods {' '.join(methods)}"
        )
        command = [sys.executable, "-m", "alpa_cfp.cli.main", *words.split()]
        failure = _run([*command, "--json", str(kept), "--database", str(Path(folder) / "p.sqlite")], options.limit_s)
        if failure:
            return [{**case, "method": "", "failure": failure}]
        content = json.loads(kept.read_text())
    agreement = content["table_agreement"]
    return [
        {**case, "method": name, "rounds": options.rounds, "parameters": content["parameters"], **row}
        | ({"table_agreement": agreement} if name == COMPOSED else {})
        for name, row in content["methods"].items()
    ]


def _run(command: Sequence[str], limit_s: float) -> str:
    """Run a command; "" if it did well, else why not.

    One that is late is interrupted, and ends what it has begun; so is one that runs when this program is interrupted.
    """
    running = subprocess.Popen(command)
    try:
        code = running.wait(limit_s)
    except subprocess.TimeoutExpired:
        return f"it took more than {limit_s:g} s"
    finally:
        if running.poll() is None:
            _end(running)
    return "" if code == 0 else f"it ended with {code}"


def _end(running: "subprocess.Popen[bytes]") -> None:
    running.send_signal(signal.SIGINT)
    try:
        running.wait(_END_S)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()


def verdicts(rows: Sequence[reports.Row]) -> list[str]:
    """A line for each case: what composing saves, and whether CFP inside is as fast as the ILP inside."""
    cases: dict[tuple[Any, ...], dict[tuple[int, int], _Planning]] = {}
    for row in rows:
        of_case = cases.setdefault(tuple(row[key] for key in _KEYS), {})
        of_case.setdefault((row.get("run", 1), row.get("planning", 1)), {})[row["method"]] = row
    said = []
    for case, plannings in cases.items():
        whole = [each for each in plannings.values() if {CFP, COMPOSED} <= set(each)]
        if whole:
            cut = "" if case[2] == case[1] else f" put together to {case[2]}"
            said.append(_verdict(f"{case[0]}, {case[1]} layers{cut}{_width(case[3], case[4])}", whole))
    return said


def _width(hidden: int, sequence: int) -> str:
    """How wide a model is; "" if it has its usual size."""
    return f", hidden size {hidden}, sequences of {sequence}" if hidden else ""


def _verdict(case: str, plannings: Sequence[_Planning]) -> str:
    def composed_by(measured: str, of: Callable[[dict[str, Any]], float]) -> str:
        return _spread([of(each[COMPOSED]) / of(each[measured]) for each in plannings])

    names = {CFP: "CFP"} | ({ILP: "the ILP"} if all(ILP in each for each in plannings) else {})
    times = (
        f"{composed_by(method, _planning_s)} of that with {name} (choosing stages: {composed_by(method, _choosing_s)})"
        for method, name in names.items()
    )
    programs = (_spread([each[method][_PROGRAMS] for each in plannings], 0) for method in (COMPOSED, *names))
    said = (
        f"{case}: of the planning time of measuring, composing takes {' and '.join(times)}; {next(programs)} programs "
        f"are compiled to choose stages, against {' and '.join(programs)}."
    )
    alike = sum(_stages(each[COMPOSED]) == _stages(each[CFP]) for each in plannings)
    if len(plannings) == 1:
        said += f" It chooses {'the stages' if alike else 'other stages than those'} that measuring with CFP chooses."
    else:
        said += f" In {alike} of {len(plannings)} plannings it chooses the stages that measuring with CFP chooses."
    if all(_one_device_a_stage(row) for each in plannings for row in each.values()):
        said += (
            " Each stage has one device, so there is nothing to plan inside of stages: steps of the same stages differ "
            "by chance alone."
        )
    if all(each[method]["step"] for each in plannings for method in (COMPOSED, CFP)):
        said += f" A step takes {composed_by(CFP, _step_ms)} of one of that choice."
    if ILP in names:
        compared = [name for name in (CFP, COMPOSED, ILP_AGAIN, *_RIVALS) if all(name in each for each in plannings)]
        to_ilp = {name: [each[name].get("to_alpa_ilp") for each in plannings] for name in compared}
        known = {name: [ratio["paired"] for ratio in ratios if ratio] for name, ratios in to_ilp.items()}
        ratios = (f"{_spread(values)} with {name}" for name, values in known.items() if values)
        said += f" Of one of the ILP's it takes {', '.join(ratios)}."
    agreed = [agreement for each in plannings if (agreement := each[COMPOSED]["table_agreement"]) is not None]
    if agreed:
        said += (
            f" Its costs of {agreed[0]['stages']} candidate stages are "
            f"{_spread([each['median_ratio'] for each in agreed])} of the measured ones (median), their rank "
            f"correlation {_spread([each['rank_correlation'] for each in agreed])}."
        )
    return said


def _spread(values: Sequence[float], digits: int = 2) -> str:
    """The median, and from where to where the values go, if they are several."""
    middle = f"{statistics.median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _planning_s(row: dict[str, Any]) -> float:
    return row["planning_s"]


def _choosing_s(row: dict[str, Any]) -> float:
    """The time to choose the stages: planning in CFP, and compiling and timing candidate stages."""
    return sum(row["planning_parts_s"][part] for part in ("plan", "compile", "profile"))


def _step_ms(row: dict[str, Any]) -> float:
    return row["step"]["median_ms"]


def _one_device_a_stage(row: dict[str, Any]) -> bool:
    return all(math.prod(stage["submesh"]) == 1 for stage in row["stages"])


def _stages(row: dict[str, Any]) -> str:
    return "; ".join(
        f"{layers_text(stage['layers'])} on {shape_text(stage['submesh'])} as {shape_text(stage['logical_mesh'])}"
        for stage in row["stages"]
    )


def _table(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    header = [
        "model",
        "layers",
        "size",
        "method",
        "planning, s",
        "CFP, s",
        "stages, s",
        "programs",
        "stages",
        "step, ms",
        "to the ILP",
    ]
    return [[*header, "predicted, ms", "rounds"], *map(_cells, rows)]


def _cells(row: dict[str, Any]) -> list[str]:
    name = f"{row['layers']} ({row['pipeline_layers']})" if row["pipeline_layers"] != row["layers"] else row["layers"]
    size = f"{row['hidden']} x {row['sequence']}" if row["hidden"] else "usual"
    if "failure" in row:
        return [row["model"], str(name), size, row["failure"], *[""] * 9]
    parts, step, ratio = row["planning_parts_s"], row["step"], row.get("to_alpa_ilp")
    return [
        row["model"],
        str(name),
        size,
        row["method"],
        f"{row['planning_s']:.1f}",
        f"{parts['plan']:.1f}",
        f"{parts['compile'] + parts['profile']:.1f}",
        f"{row['stage_programs']} + {row[_PROGRAMS] - row['stage_programs']}",
        _stages(row),
        f"{step['median_ms']:.1f} ± {step['median_ms'] * step['spread']:.1f}" if step else "wrong",
        f"{ratio['paired']:.2f} ({ratio['paired_low']:.2f} to {ratio['paired_high']:.2f})" if ratio else "",
        f"{row['predicted_ms']:.1f}",
        str(row["rounds"]),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = runner.parser(__doc__)
    parser.add_argument("--layers", nargs="*", type=int, default=[4, 8, 16], help="numbers of layers of a GPT")
    parser.add_argument("--models", nargs="*", choices=sorted(SIZES), default=[], help="models of their usual sizes")
    parser.add_argument(
        "--pipeline-layers",
        type=int,
        help=f"into how many each is cut (default {_USUAL}; with --rivals as many as devices)",
    )
    parser.add_argument("--hidden", type=int, default=256, help="of a GPT of --layers, as --sequence and --batch")
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=30, help="steps timed of each (default %(default)s)")
    parser.add_argument("--plannings", type=int, default=1, help="how often each case is planned, and then timed")
    ilps = parser.add_mutually_exclusive_group()
    ilps.add_argument("--without-ilp", action="store_true", help="plan with CFP only")
    ilps.add_argument("--again", action="store_true", help="plan with the ILP twice, which says what chance does")
    parser.add_argument("--rivals", action="store_true", help=f"also {' and '.join(_RIVALS)}")
    parser.add_argument("--limit-s", type=float, default=3600.0, help="for one case (default %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
