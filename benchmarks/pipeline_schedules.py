"""What do schedules of pipelines take? The same layers on two meshes of one device, by each schedule.

A GPT is cut into layers, half of them on each of two hosts (by the interleaved schedule every other one), and a step
runs in different numbers of micro-batches, which have the same number of samples each. The hosts are nodes of a Ray
cluster that is started for it, each on a core of its own: in one process a device that works alone would take the cores
of those that wait. Beside it what the schedule says if a forward pass takes a third of a stage's time and all layers
take as long. Adds to `results/pipeline_schedules-*`. Invariant: what is timed gives what the serial step gives.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

import alpa

from alpa_cfp import CFPOption
from alpa_cfp.stages.schedule_choice import Choice, LayerCosts
from alpa_cfp.stages.schedules import interleaved
from alpa_cfp_bench.case import CFP, Case, Cluster, Pipeline
from alpa_cfp_bench.checking import difference, run_serially, tolerance
from alpa_cfp_bench.pipelines import plan_pipeline
from alpa_cfp_bench.places import places
from alpa_cfp_bench.programs import Program
from alpa_cfp_bench.timing import interleave, ratio
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.sizes import Size
from benchmarks import runner
from benchmarks.ray_clusters import cluster
from benchmarks.runner import Benchmark, one_row

_MESHES, _VOCABULARY = 2, 256
_SCHEDULES = ("1f1b", "gpipe", "interleaved_1f1b", "zero_bubble")

_TEXT = (
    "A training step of a GPT as a pipeline on two hosts of a Ray cluster on this machine, of one virtual CPU device "
    "each, which has one core: its layers by each schedule, each micro-batch with as many samples. Stages are planned "
    "by CFP, which has nothing to decide on one device. Interleaved in random order; intervals over rounds. "
    "`expected`: what a step is expected to take of 1F1B's (`stages/schedule_choice.py`) if all layers take as long; "
    "`by the bubble`: the same if programs cost nothing to start."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that the command line names."""
    parser = runner.parser(
        __doc__, micro_batches=[2, 4, 8], layers=8, hidden=256, sequence=128, samples=2, rounds=30, seed=0
    )
    options = parser.parse_args(argv)
    header = ("micro-batches", "schedule", "step, ms", "of 1F1B's", "expected", "by the bubble")
    results = (row for count in options.micro_batches for row in measure(count, options))
    return Benchmark("pipeline_schedules", _TEXT, header, one_row(_cells)).run(results, options)


def measure(micro_batches: int, options: Any) -> Iterator[dict[str, Any]]:
    """Time all schedules for one number of micro-batches.

    Raises:
        RuntimeError: a step gives something else than the serial one.
    """
    size = Size(
        batch=micro_batches * options.samples,
        hidden=options.hidden,
        layers=options.layers,
        sequence=options.sequence,
        vocabulary=_VOCABULARY,
    )
    case = Case("gpt", f"{_MESHES}x1", size, micro_batches)
    option = CFPOption(costs="estimate", progress=False)
    programs: dict[str, Program] = {}
    model = build("gpt", size)
    expected = run_serially(model, micro_batches)
    count, cores = len(_SCHEDULES), sorted(os.sched_getaffinity(0))
    with (
        cluster(*[count] * _MESHES, cpus=count, cores=cores) as nodes,
        places(case, Cluster(nodes.address, _MESHES, 1), count) as where,
    ):
        for number, schedule in enumerate(_SCHEDULES):
            pipeline = Pipeline(options.layers, _MESHES, schedule)
            program = plan_pipeline(case, pipeline, CFP, option, where.of(number)).program
            program()
            limit = tolerance(model, alpa.global_config.backend)
            if difference(program.loss(), program.state, expected).relative > limit:
                raise RuntimeError(f"{schedule}: the step gives something else than the serial one")
            programs[schedule] = program
        samples = interleave(programs, options.rounds, seed=options.seed)
    said = {schedule: _expected(schedule, options.layers, micro_batches) for schedule in _SCHEDULES}
    for schedule in _SCHEDULES:
        to_first = ratio(samples[schedule], samples["1f1b"], seed=options.seed)
        yield {
            "micro_batches": micro_batches,
            "schedule": schedule,
            "step_ms": 1e3 * samples[schedule].median_s,
            "ratio": [to_first.paired, to_first.paired_low, to_first.paired_high],
            "expected": said[schedule][0] / said["1f1b"][0],
            "by_bubble": said[schedule][1] / said["1f1b"][1],
        }


def _expected(schedule: str, layers: int, micro_batches: int) -> tuple[float, float]:
    """The seconds of a step by a schedule if each layer takes one, and those of its tasks alone."""
    equal = LayerCosts(
        layers, micro_batches, lambda first, last, mesh: 1.0 + last - first, [inf] * _MESHES, lambda first, last: 0.5
    )
    whole = equal.cut(1)
    assert whole is not None
    # GPipe keeps more activations, and waits as long as 1F1B.
    choice: Choice | None = Choice("1f1b", whole, interleaved(_MESHES, 1, micro_batches))
    if schedule == "interleaved_1f1b":
        choice = equal.fastest_interleaved(2)
    elif schedule == "zero_bubble":
        choice = equal.zero_bubble(whole)
    assert choice is not None
    return equal.step_s(choice), equal.tasks_s(choice)


def _cells(row: dict[str, Any]) -> list[str]:
    of, low, high = row["ratio"]
    return [
        str(row["micro_batches"]), row["schedule"], f"{row['step_ms']:.1f}", f"{of:.3f} [{low:.3f}, {high:.3f}]",
        f"{row['expected']:.3f}", f"{row['by_bubble']:.3f}",
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
