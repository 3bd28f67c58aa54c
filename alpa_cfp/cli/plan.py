"""`alpa-cfp plan`: plans one of the bench's models, or a function of the user's own, on a mesh, and saves the plan."""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from alpa_cfp import quantities
from alpa_cfp.cli.cluster import add_cluster, devices_of, read_cluster
from alpa_cfp.cli.files import check_are_different, check_can_write
from alpa_cfp.cli.process import UserError
from alpa_cfp.cli.program import add_program, check_is_model, plan_for_program
from alpa_cfp.cli.targets import add_target, check_needs_no_target, plan_for_target
from alpa_cfp.cli.workload import (
    DEFAULT_MESH,
    DEFAULT_MODEL,
    add_workload,
    check_alpa_has,
    check_database,
    describe_sizes,
    read_workload,
    start,
)
from alpa_cfp.database import database_path
from alpa_cfp_bench.workloads.sizes import mesh_shape

if TYPE_CHECKING:
    from alpa_cfp.plan.plan import Plan

_EXAMPLES = """models, with their usual size (--size changes it):
{sizes}

examples:
  alpa-cfp plan --costs estimate                    in seconds, without running anything
  alpa-cfp plan --model moe --mesh 1x8 --out plan.json
  alpa-cfp plan --size layers=24 hidden=1024 heads=16 --mesh 2x4 --costs estimate --memory-mb 900
  alpa-cfp plan --ray 10.0.0.1:6379 --mesh 2x4      measured on two hosts with four devices each
  alpa-cfp plan --target h100:1x8 --model llama-7b  for eight H100 that are not here
  alpa-cfp plan my_module:train_step --args my_module:example_args --mesh data=2,model=4 --donate 0 --out plan.json
                                                    a function of your own; Plan.load("plan.json").jit runs it so
  alpa-cfp explain plan.json                        what the plan decided, and why

The step itself is neither compiled nor run: only shapes are looked at, so a model may be larger than this machine.
Exit code 0: there is a plan; 2: there can be none, and one line says why; 130: Ctrl-C. What was measured by then is in
the database, and the next run goes on from there."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `alpa-cfp plan`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES.format(sizes=describe_sizes())
    add_program(parser)
    add_workload(parser)
    add_cluster(parser)
    parser.add_argument(
        "--costs", choices=("measure", "compile", "replay", "estimate"),
        help="measure: run parts of the step on the mesh (default); compile: compile them for the --target and model "
        "what they take (default there); replay: use what the database has, run nothing; estimate: count work and "
        "communication",
    )  # fmt: skip
    add_target(parser)
    # With a target the mesh is that of the hosts; a program of one's own is instead of a model.
    parser.set_defaults(mesh=None, model=None)
    parser.add_argument(
        "--device-kind", metavar="NAME", help="with replay: of which devices, if the database has several"
    )
    parser.add_argument("--memory-mb", type=float, metavar="N", help="what one device may hold (default: no limit)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the plan there")


def run(arguments: argparse.Namespace) -> int:
    """Runs `alpa-cfp plan`.

    Raises:
        UserError: the command line is wrong.
        CFPError, ProfileDatabaseError: as documented in `CFPOption`.
    """
    if arguments.memory_mb is not None and arguments.memory_mb <= 0:
        raise UserError(f"--memory-mb is {arguments.memory_mb:g}, and must be above zero")
    check_are_different({"--out": arguments.out, "--database": database_path(arguments.database)})
    check_can_write(arguments.out, "--out")
    if arguments.costs != "replay":  # which only reads it
        check_can_write(arguments.database, "--database")
    budget = None if arguments.memory_mb is None else int(arguments.memory_mb * 1e6)
    started = time.perf_counter()
    plan = _plan(arguments, budget)
    print("\n".join(_summary(plan, time.perf_counter() - started)))
    if arguments.out is not None:
        plan.save(arguments.out)
        print(f"written: {arguments.out}")
    return 0


def _plan(arguments: argparse.Namespace, budget: int | None) -> "Plan":
    if arguments.program is not None:
        return plan_for_program(arguments, budget)
    check_is_model(arguments)
    arguments.model = arguments.model or DEFAULT_MODEL
    return _planned(arguments, budget) if arguments.target is None else _for_target(arguments, budget)


def _for_target(arguments: argparse.Namespace, memory_budget_bytes: int | None) -> "Plan":
    from alpa_cfp.search.errors import MemoryBudgetError

    try:
        return plan_for_target(arguments, memory_budget_bytes)
    except MemoryBudgetError as error:
        raise UserError(str(error)) from error


def _planned(arguments: argparse.Namespace, memory_budget_bytes: int | None) -> "Plan":
    """The plan for devices of this machine, or of a cluster."""
    check_needs_no_target(arguments)
    arguments.mesh, arguments.costs = arguments.mesh or DEFAULT_MESH, arguments.costs or "measure"
    case = read_workload(arguments)
    if case.num_micro_batches:
        check_alpa_has(case, what="--micro-batches")
    cluster = read_cluster(arguments, case)
    if cluster is not None and arguments.costs != "measure":
        raise UserError(f"--costs {arguments.costs} runs nothing, and so needs no hosts: leave --ray out")
    start(case, cluster)
    check_database(arguments.database)
    # These import jax, whose devices must be configured before.
    from alpa_cfp import CFPOption
    from alpa_cfp.search.errors import MemoryBudgetError
    from alpa_cfp_bench.methods import plan_only
    from alpa_cfp_bench.progress import Progress

    with devices_of(case, cluster) as devices, Progress(1) as progress:
        progress.say(f"planning {case.model} on {quantities.a_mesh(mesh_shape(case.mesh))}")
        option = CFPOption(
            costs=arguments.costs,
            memory_budget_bytes=memory_budget_bytes,
            database=arguments.database,
            device_kind=arguments.device_kind,
            seed=arguments.seed,
            progress=progress.is_bar,
        )
        try:
            return plan_only(case, option, devices)
        except MemoryBudgetError as error:
            raise UserError(str(error)) from error


def _summary(plan: "Plan", seconds: float) -> list[str]:
    from alpa_cfp_bench.text import size_text, time_text

    memory = plan.memory
    words = [
        f"planned {len(plan.strategies)} blocks on {quantities.a_mesh(plan.mesh_shape)} in {seconds:.1f} s",
        f"predicted   {time_text(plan.predicted_s)} a step, {size_text(memory.total)} a device ({plan.costs})",
    ]
    if plan.measured_s is not None and plan.costs == "compile":
        words.append(f"modelled    {time_text(plan.measured_s)} a step, from the whole compiled program")
    elif plan.measured_s is not None:
        words.append(f"measured    {time_text(plan.measured_s)} a step, timed end to end")
    if plan.needed_bytes is not None:
        words.append(f"it needs    {size_text(plan.needed_bytes)} a device, by the compiled program")
    return words
