"""`alpa-cfp bench --method pipeshard`: its arguments, their checks, and the run.

Prints the comparison, and writes it as JSON and as a folder of plans. Invariant: jax is imported after the command line
has been checked.
"""

import argparse
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from alpa_cfp.cli.files import check_are_different, check_can_fill, check_can_write
from alpa_cfp.cli.process import UserError, interrupted_afterwards
from alpa_cfp.cli.workload import FIELDS_OF, check_database, start
from alpa_cfp.database import database_path
from alpa_cfp_bench.case import (
    CFP,
    COMPOSED,
    DP_PIPELINE,
    ILP,
    ILP_AGAIN,
    INTER_OP,
    PIPELINE_METHODS,
    PIPESHARD,
    SCHEDULES,
    SHARD,
    Case,
    Cluster,
    Effort,
    Pipeline,
)

AUTO = "auto"
# Values of `--methods`; `STAGE_COSTS` has the variants of CFP.
_METHODS = (CFP, ILP, ILP_AGAIN, DP_PIPELINE, INTER_OP)
# Values of `--stage-costs`, and the methods that they stand for.
STAGE_COSTS = {"profile": (CFP,), "compose": (COMPOSED,), "both": (CFP, COMPOSED)}
_OWN = ("stages", "pipeline_layers", "schedule", "stage_costs", "costs", "reports")
_OF_SHARD = {
    "copies": "there is one of each",
    "picture": "it draws programs of one mesh",
    "save_plan": "they have many plans, which --reports FOLDER writes",
}
_HERE = "candidate stages are timed on the meshes of a Ray cluster"


def add_pipelines(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of pipelines."""
    parser.add_argument(
        "--method", default=SHARD, choices=(SHARD, PIPESHARD),
        help=f"{SHARD}: the whole step on each device of the mesh (default); {PIPESHARD}: a pipeline of stages, each "
        "on a part of the mesh, with CFP and with Alpa's ILP inside",
    )  # fmt: skip
    group = parser.add_argument_group(f"with --method {PIPESHARD}")
    group.add_argument(
        "--stages", metavar="N",
        help=f"how many, or {AUTO}: alpa chooses them by what candidate stages cost (default with --ray; else 2)",
    )  # fmt: skip
    group.add_argument(
        "--pipeline-layers", type=int, metavar="N",
        help="into how many layers the model is cut, of which stages are made (default: as many as stages, by "
        f"interleaved_1f1b twice as many; with {AUTO} as many as the model has)",
    )  # fmt: skip
    group.add_argument(
        "--schedule", choices=SCHEDULES, help=f"in which order micro-batches run (default {SCHEDULES[0]})"
    )
    group.add_argument(
        "--stage-costs", choices=STAGE_COSTS,
        help=f"with --stages {AUTO}, what CFP's candidate stages cost: profile, what alpa measures of them; compose, "
        "what profiles of their segments add up to; both side by side (default with --ray; else compose)",
    )  # fmt: skip
    group.add_argument(
        "--costs", choices=("measure", "estimate"), help="measure: CFP runs parts of the stages (default); estimate: "
        "it counts work and communication",
    )  # fmt: skip
    group.add_argument(
        "--reports", type=Path, metavar="FOLDER", help="write there what CFP planned for each stage: in words, as a "
        "page for a browser, and as a file for `alpa-cfp explain`",
    )  # fmt: skip


def is_pipeline(arguments: argparse.Namespace) -> bool:
    """Whether the command line selects pipelines.

    Raises:
        UserError: an argument belongs to the other method.
    """
    if arguments.method == PIPESHARD:
        for name, reason in _OF_SHARD.items():
            if getattr(arguments, name) is not None:
                raise UserError(f"--{name.replace('_', '-')} is not for pipelines: {reason}")
        return True
    for name in _OWN:
        if getattr(arguments, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} is for pipelines: give --method {PIPESHARD}, too")
    return False


def read_pipeline(arguments: argparse.Namespace, case: Case, cluster: Cluster | None) -> Pipeline:
    """The stages, layers and schedule of the pipeline.

    Raises:
        UserError: their number is not possible.
    """
    given = arguments.stages or (AUTO if cluster is not None else "2")
    if given != AUTO and not (given.isdecimal() and int(given)):
        raise UserError(f"{given!r} is no number of stages: --stages takes 1, 2, ... or {AUTO}")
    stages = None if given == AUTO else int(given)
    of_model = case.size.layers if "layers" in FIELDS_OF[case.model] else 2
    schedule = arguments.schedule or SCHEDULES[0]
    of_stages = stages and stages * (2 if schedule == "interleaved_1f1b" else 1)
    layers = of_stages or of_model if arguments.pipeline_layers is None else arguments.pipeline_layers
    if layers < (stages or 1):
        raise UserError(f"{layers} layers cannot make {stages or 'any'} stages: give more --pipeline-layers")
    return Pipeline(layers, stages, schedule)


def read_methods(arguments: argparse.Namespace, pipeline: Pipeline, cluster: Cluster | None) -> list[str]:
    """The keys of `PIPELINE_METHODS` to compare.

    Raises:
        UserError: a method does not exist, or does not fit the way in which stages are chosen.
    """
    named = list(dict.fromkeys(arguments.methods or [CFP, ILP]))
    for name in named:
        if name not in _METHODS:
            raise UserError(f"{name!r} does not plan pipelines: of --methods, {', '.join(_METHODS)} do")
    costs = arguments.stage_costs
    if pipeline.stages is not None:
        if costs is not None:
            raise UserError(f"--stage-costs says by what alpa chooses stages: give --stages {AUTO}, too")
        return named
    if cluster is None:
        if costs not in (None, "compose"):
            raise UserError(f"--stage-costs {costs} needs --ray: {_HERE}. --stage-costs compose does without")
        if arguments.methods is not None and (ilp := [name for name in named if name != CFP]):
            raise UserError(
                f"--stages {AUTO} with {ilp[0]} needs --ray: {_HERE}. Say how many --stages, or --methods {CFP}"
            )
        return [COMPOSED]
    own = STAGE_COSTS[costs or "both"]
    return [each for name in named for each in (own if name == CFP else (name,))]


def run(arguments: argparse.Namespace, case: Case, cluster: Cluster | None, wrong_result: int) -> int:
    """Runs `alpa-cfp bench` for pipelines.

    Args:
        arguments: The command line.
        case: The model, mesh and sizes.
        cluster: The cluster to run on; None for the devices of this process.
        wrong_result: The exit code if a method gives a wrong result.

    Raises:
        UserError: the command line is wrong.
    """
    pipeline = read_pipeline(arguments, case, cluster)
    methods = read_methods(arguments, pipeline, cluster)
    if pipeline.stages is None and arguments.costs == "estimate" and CFP in methods:
        raise UserError("--costs estimate runs nothing to price stages by: give --stage-costs compose, too")
    check_are_different({"--json": arguments.json, "--database": database_path(arguments.database)})
    for option in ("json", "database"):
        check_can_write(getattr(arguments, option), f"--{option}")
    check_can_fill(arguments.reports, "--reports")
    start(case, cluster)
    check_database(arguments.database)
    # These import jax, whose devices must be configured before.
    with interrupted_afterwards():
        from alpa_cfp import CFPOption
        from alpa_cfp_bench.machine import describe
        from alpa_cfp_bench.pipelines import compare, steps_of
        from alpa_cfp_bench.places import places
        from alpa_cfp_bench.progress import Progress
        from alpa_cfp_bench.report import to_json, write_plans
        from alpa_cfp_bench.table import lines

    effort = Effort(arguments.rounds, 1, seed=arguments.seed)
    with places(case, cluster, len(methods)) as where:
        _check_shape(pipeline, methods, where.shape)
        interleaved = not where.are_shared(len(methods))
        with Progress(steps_of(methods, effort, interleaved=interleaved)) as progress:
            option = CFPOption(
                costs=arguments.costs or "measure", database=arguments.database, samples=effort.samples,
                seed=arguments.seed, progress=progress.is_bar,
            )  # fmt: skip
            found = compare(case, pipeline, methods, effort, option, progress, where)
        machine = describe(where.mesh_of_hosts())
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print("\n".join(lines(found, machine, width)))
    if methods == [COMPOSED] and arguments.methods is None:
        print(f"{ILP} is left out: {_HERE}, and no --ray is given")
    written: list[Path] = []
    if arguments.json is not None:
        arguments.json.write_text(to_json(found, machine, shlex.join(["alpa-cfp", *sys.argv[1:]])))
        written.append(arguments.json)
    if arguments.reports is not None:
        write_plans(found, arguments.reports)
        written.append(arguments.reports)
    if written:
        print(f"\nwritten: {', '.join(map(str, written))}")
    return 0 if found.is_right else wrong_result


def _check_shape(pipeline: Pipeline, methods: Sequence[str], shape: Sequence[int]) -> None:
    """Checks that alpa can divide a mesh of this many hosts and devices per host into submeshes as it has to."""
    from alpa_cfp_bench.pipelines import submesh_of

    hosts, devices = shape
    count = hosts * devices
    if INTER_OP in methods and (pipeline.layers < count or pipeline.stages not in (None, count)):
        raise UserError(
            f"{INTER_OP} makes as many stages as devices, {count}: give --pipeline-layers {count} or more, and "
            f"--stages {AUTO} or {count}"
        )
    if pipeline.stages is not None and submesh_of(pipeline, hosts, devices) is None:
        raise UserError(
            f"{pipeline.stages} stages cannot have equal submeshes of {hosts} x {devices} devices: a stage has "
            "whole hosts, or a part of one that divides it. Give other --stages"
        )


def describe_methods() -> str:
    """The methods of pipelines, a line each, for help texts."""
    width = max(map(len, PIPELINE_METHODS))
    return "\n".join(f"  {name.ljust(width)}  {words}" for name, words in PIPELINE_METHODS.items())
