"""`alpa-cfp bench`: compares methods on a model and a mesh, and writes the result as a table, JSON and a picture.

With `--target` nothing runs, and `cli.bench_targets` has the rest. Exit code 0: every method gave the result of the
serial run; 1: one did not; 2: wrong use.
"""

import argparse
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from alpa_cfp import quantities
from alpa_cfp.cli import bench_targets, pipelines
from alpa_cfp.cli.cluster import add_cluster, devices_of, read_cluster
from alpa_cfp.cli.files import check_are_different, check_can_write
from alpa_cfp.cli.process import UserError, interrupted_afterwards
from alpa_cfp.cli.targets import add_target
from alpa_cfp.cli.workload import (
    DEFAULT_MESH,
    add_workload,
    check_alpa_has,
    check_can_draw,
    check_database,
    describe_sizes,
    read_workload,
    start,
)
from alpa_cfp.database import database_path
from alpa_cfp_bench.case import (
    ALL_METHODS,
    BY_JIT,
    CFP,
    COMPOSED,
    ILP_AGAIN,
    METHODS,
    PROPAGATION,
    RIVALS,
    Case,
    Cluster,
    Effort,
)
from alpa_cfp_bench.workloads.sizes import mesh_shape

WRONG_RESULT = 1
_OF_THIS_PROCESS = "it is plain jax.jit of one process, which has none of the hosts' devices"
_EXAMPLES = """methods:
{methods}

rivals, only where they are named (docs/rivals.md):
{rivals}

methods of pipelines ({composed} is {cfp} with --stage-costs compose):
{of_pipelines}

models, with their usual size (--size changes it):
{sizes}

examples:
  alpa-cfp bench                                      all methods for a small GPT on 2x4 devices
  alpa-cfp bench --size tiny --rounds 5               the same in a minute or less
  alpa-cfp bench --model moe --mesh 1x8 --methods cfp alpa-ilp
  alpa-cfp bench --model llama --mesh 2x4 --methods cfp flexflow tofu maxtext
  alpa-cfp bench --ray 10.0.0.1:6379 --mesh 2x4       on the hosts of a Ray cluster, here two with four devices each
  alpa-cfp bench --method pipeshard --mesh 1x4 --micro-batches 4      pipelines of two stages in this process
  alpa-cfp bench --method pipeshard --ray 10.0.0.1:6379 --micro-batches 4 --reports stages
  alpa-cfp bench --size layers=4 hidden=256 --micro-batches 2 --json result.json --picture result.png
  alpa-cfp bench --target h100:1x8 --model gpt-1.3b   on eight H100 that are not here: compiled for them, and modelled

On a CPU as many virtual devices are made as the mesh needs. Exit code 0: every method gives what one device gives
without parallelism; 1: one does not; 2: something on the command line cannot be; 130: Ctrl-C. What CFP has measured by
then is in the database, and the next run goes on from there."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `alpa-cfp bench`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES.format(
        methods=_described(METHODS),
        rivals=_described(RIVALS),
        sizes=describe_sizes(),
        of_pipelines=pipelines.describe_methods(),
        composed=COMPOSED,
        cfp=CFP,
    )
    add_workload(parser)
    add_cluster(parser)
    add_target(parser)
    bench_targets.add_limits(parser)
    parser.set_defaults(mesh=None)  # with a target it is that of the hosts
    pipelines.add_pipelines(parser)
    parser.add_argument(
        "--methods", nargs="+", metavar="METHOD", help="some of those below (default: all that run there, each once)"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        metavar="N",
        help=f"steps timed of each copy (default {Effort().rounds})",
    )
    parser.add_argument(
        "--copies", type=int, metavar="N",
        help="of each program: where arrays lie in memory changes its time by some per cent (default "
        f"{Effort().copies})",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured there")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw it (.png, .svg or .pdf; needs matplotlib)")
    parser.add_argument("--save-plan", type=Path, metavar="FILE", help="write CFP's plan there, for `alpa-cfp explain`")


def _described(methods: Mapping[str, str]) -> str:
    width = max(map(len, methods))
    return "\n".join(f"  {name.ljust(width)}  {words}" for name, words in methods.items())


def run(arguments: argparse.Namespace) -> int:
    """Runs `alpa-cfp bench`.

    Raises:
        UserError: the command line is wrong.
    """
    of_pipelines = pipelines.is_pipeline(arguments)
    if arguments.target is not None:
        return bench_targets.run(arguments)
    bench_targets.check_are_here(arguments)
    arguments.mesh = arguments.mesh or DEFAULT_MESH
    case = read_workload(arguments)
    cluster = read_cluster(arguments, case)
    for name in ("rounds", "copies"):
        if (number := getattr(arguments, name)) is not None and number < 1:
            raise UserError(f"--{name} is {number}, and must be at least 1")
    if of_pipelines:
        check_alpa_has(case, what="--method pipeshard")
        arguments.rounds = arguments.rounds or Effort().rounds
        return pipelines.run(arguments, case, cluster, WRONG_RESULT)
    methods = _methods(arguments.methods, cluster)
    if arguments.save_plan is not None and "cfp" not in methods:
        raise UserError("--save-plan writes the plan of the method cfp, which is not among --methods")
    check_can_draw(arguments.picture)
    files: dict[str, Path | None] = {
        f"--{name.replace('_', '-')}": getattr(arguments, name) for name in ("json", "picture", "save_plan", "database")
    }
    check_are_different({**files, "--database": database_path(arguments.database)})
    for option, path in files.items():
        check_can_write(path, option)
    start(case, cluster)
    check_database(arguments.database)
    left_out = _misfits(case, methods)
    if arguments.methods is not None and left_out:
        method, reason = next(iter(left_out.items()))
        mesh = quantities.a_mesh(mesh_shape(case.mesh))
        raise UserError(f"{method} cannot run {case.model} on {mesh}: {reason}. Leave it out of --methods")
    if cluster is not None and arguments.methods is None:
        left_out[PROPAGATION] = _OF_THIS_PROCESS
    return _compare(case, [name for name in methods if name not in left_out], arguments, cluster, left_out)


def _compare(
    case: Case, methods: list[str], arguments: argparse.Namespace, cluster: Cluster | None, left_out: dict[str, str]
) -> int:
    # These import jax, whose devices must be configured before.
    with interrupted_afterwards():
        from alpa_cfp import CFPOption
        from alpa_cfp_bench.machine import describe
        from alpa_cfp_bench.picture import draw
        from alpa_cfp_bench.progress import Progress
        from alpa_cfp_bench.report import to_json
        from alpa_cfp_bench.running import compare, steps_of
        from alpa_cfp_bench.table import lines

    effort = Effort(arguments.rounds or Effort().rounds, arguments.copies or Effort().copies, seed=arguments.seed)
    with devices_of(case, cluster) as devices, Progress(steps_of(methods, effort)) as progress:
        option = CFPOption(
            database=arguments.database,
            samples=effort.samples,
            seed=arguments.seed,
            progress=progress.is_bar,
            logical_mesh_shapes="all",  # as Alpa's ILP gets them
        )
        found = compare(case, methods, effort, option, progress, devices)
        machine = describe(None if devices is None else devices.physical_mesh)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print("\n".join(lines(found, machine, width)))
    for method, reason in left_out.items():
        print(f"{method} is left out: {reason}")
    if arguments.json is not None:
        arguments.json.write_text(to_json(found, machine, shlex.join(["alpa-cfp", *sys.argv[1:]])))
    if arguments.picture is not None:
        draw(found, machine, arguments.picture)
    own = found.of("cfp")
    if arguments.save_plan is not None and own is not None and own.plan is not None:
        own.plan.save(arguments.save_plan)
    written = [str(path) for path in (arguments.json, arguments.picture, arguments.save_plan) if path is not None]
    if written:
        print(f"\nwritten: {', '.join(written)}")
    return 0 if found.is_right else WRONG_RESULT


def _methods(names: list[str] | None, cluster: Cluster | None) -> list[str]:
    if names is None:
        left_out = (ILP_AGAIN, *([] if cluster is None else [PROPAGATION]))
        return [name for name in METHODS if name not in left_out]
    for name in names:
        if name not in ALL_METHODS:
            raise UserError(f"there is no method {name!r}: --methods takes some of {', '.join(ALL_METHODS)}")
        if cluster is not None and name in BY_JIT:
            raise UserError(f"{name} and --ray exclude each other: {_OF_THIS_PROCESS}")
    return list(dict.fromkeys(names))


def _misfits(case: Case, methods: list[str]) -> dict[str, str]:
    """The methods that cannot run the case, with the reasons."""
    from alpa_cfp_bench.methods import misfit

    reasons = {method: misfit(case, method) for method in methods}
    return {method: reason for method, reason in reasons.items() if reason}
