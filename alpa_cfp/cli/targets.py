"""`--target` of `alpa-cfp plan` and `bench`: models on devices that are not here.

Takes the command line; gives a case, or a plan for it. Invariant: JAX is imported after it has been told to use no
device of this machine but its CPU.
"""

import argparse
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from alpa_cfp import quantities
from alpa_cfp.cli.process import UserError, interrupted_afterwards
from alpa_cfp.cli.workload import check_database, check_mesh, read_size
from alpa_cfp_bench.workloads.published import SUITES
from alpa_cfp_bench.workloads.published import Case as PublishedCase
from alpa_cfp_bench.workloads.sizes import SIZES, mesh_shape

if TYPE_CHECKING:
    from alpa_cfp.plan.plan import Plan
    from alpa_cfp_bench.targets.case import TargetCase

# The models at their published sizes, by what the command line calls them: "llama-7b".
PUBLISHED: dict[str, PublishedCase] = {
    f"{suite}-{name}".lower(): case for suite, cases in SUITES.items() for name, case in cases.items()
}


def add_target(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that select a target."""
    parser.add_argument(
        "--target", metavar="CHIP:AxB",
        help="for devices that are not here: h100:1x8 (hosts x devices of each), v5e:2x4 (a slice). Programs are "
        "compiled for them, and what they take is modelled. --model also takes published sizes (llama-7b), --mesh is "
        "by default hosts x devices",
    )  # fmt: skip
    parser.add_argument(
        "--batch", type=int, metavar="N", help="with --target and a published size: the samples of a step"
    )


def plan_for_target(arguments: argparse.Namespace, memory_budget_bytes: int | None) -> "Plan":
    """The plan of a model on a target.

    Args:
        arguments: The command line.
        memory_budget_bytes: What one device may hold; None for what a program can have there.

    Raises:
        UserError: the model, the mesh or a package is wrong.
        CFPError: see `autoshard`.
    """
    check_target(arguments)
    start_for_target(arguments)
    case = case_of(arguments)
    from alpa_cfp import PlanOptions, autoshard, target
    from alpa_cfp_bench.progress import Progress

    step, mesh = case.step(), target(case.target).mesh(case.mesh)
    with Progress(1) as progress:
        progress.say(f"planning {arguments.model} for {mesh.target.name}, {quantities.a_mesh(case.mesh)}")
        option = PlanOptions(
            costs="compile" if arguments.costs is None else arguments.costs,
            memory_budget_bytes=memory_budget_bytes,
            database=arguments.database,
            seed=arguments.seed,
            progress=progress.is_bar,
        )
        return autoshard(step.function, mesh, step.state, step.batch, donate_argnums=0, option=option)


def check_target(arguments: argparse.Namespace) -> None:
    """Checks what can be checked of a command line with a target without jax.

    Raises:
        UserError: the model or the mesh is wrong, or an argument belongs to devices that are here.
    """
    if arguments.ray is not None:
        raise UserError("--target plans for devices that are not here: leave --ray out")
    if arguments.micro_batches is not None:
        raise UserError("--target plans a step without micro-batches: leave --micro-batches out")
    if arguments.mesh is not None:
        check_mesh(arguments.mesh)
    model, batch = arguments.model, arguments.batch
    if model not in SIZES and model not in PUBLISHED:
        raise UserError(f"there is no model {model!r}: --model takes one of {', '.join((*SIZES, *PUBLISHED))}")
    if batch is not None and (model not in PUBLISHED or batch < 1):
        raise UserError(f"--batch is {batch}: it is the samples, at least 1, of a step of {', '.join(PUBLISHED)}")
    if model in PUBLISHED and arguments.size:
        raise UserError(f"{model} has its published size: --size changes one of {', '.join(SIZES)}")


def start_for_target(arguments: argparse.Namespace) -> None:
    """Imports jax and alpa for a target, and checks the database.

    Raises:
        UserError: alpa cannot be imported, or the database is no file.
        ProfileDatabaseError: it is no database, or cannot be read.
    """
    use_cpu_only()
    try:
        with interrupted_afterwards():
            import alpa  # noqa: F401
    except ImportError as error:
        raise UserError(f"{error}. `alpa-cfp doctor` says what is missing and how to install it") from error
    check_database(arguments.database)


def check_needs_no_target(arguments: argparse.Namespace) -> None:
    """Checks that a command line without a target has none of its options.

    Raises:
        UserError: it has.
    """
    if arguments.costs == "compile" or arguments.batch is not None:
        raise UserError("--costs compile and --batch go with a target: name it, such as --target h100:1x8")


def use_cpu_only() -> None:
    """Lets JAX use no device but the CPU, unless the user has said otherwise; to be called before it is imported."""
    # A plugin of JAX would look for devices otherwise.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")


def case_of(arguments: argparse.Namespace) -> "TargetCase":
    """The selected model on the target: as many samples as the devices divide, if its size is a published one.

    Raises:
        UserError: the size is wrong.
        TargetError: there is no such target, or mesh of it.
    """
    from alpa_cfp import target
    from alpa_cfp_bench.targets.case import Sized, TargetCase

    on, model = target(arguments.target), arguments.model
    hosts = (on.hosts, on.devices_per_host) if on.hosts > 1 else (on.devices_per_host,)
    shape = hosts if arguments.mesh is None else mesh_shape(arguments.mesh)
    if model not in PUBLISHED:
        return TargetCase.on(Sized(model, read_size(model, arguments.size)), arguments.target, shape)
    case = PUBLISHED[model]
    if arguments.batch is not None:
        case = replace(case, batch=arguments.batch, micro_batches=1)
    return TargetCase.on(case, arguments.target, shape)
