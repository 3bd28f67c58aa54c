"""`alpa-cfp plan --target`: plans for devices that are not here.

Takes the command line; gives a plan. Invariant: JAX is imported after it has been told to use no device of this
machine but its CPU.
"""

import argparse
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from alpa_cfp import quantities
from alpa_cfp.cli.process import UserError, interrupted_afterwards
from alpa_cfp.cli.workload import check_database, read_size
from alpa_cfp_bench.workloads.published import SUITES
from alpa_cfp_bench.workloads.published import Case as PublishedCase
from alpa_cfp_bench.workloads.sizes import SIZES, mesh_shape

if TYPE_CHECKING:
    from alpa_cfp.plan.plan import Plan

# The models at their published sizes, by what the command line calls them: "llama-7b".
PUBLISHED: dict[str, PublishedCase] = {
    f"{suite}-{name}".lower(): case for suite, cases in SUITES.items() for name, case in cases.items()
}


def add_target(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that select a target."""
    parser.add_argument(
        "--target", metavar="CHIP:AxB",
        help="plan for devices that are not here: h100:1x8 (hosts x devices of each), v5e:2x4 (a slice). Programs are "
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
    _check(arguments)
    # A plugin of JAX would look for devices otherwise.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    try:
        with interrupted_afterwards():
            import alpa  # noqa: F401
    except ImportError as error:
        raise UserError(f"{error}. `alpa-cfp doctor` says what is missing and how to install it") from error
    check_database(arguments.database)
    from alpa_cfp import PlanOptions, autoshard, target
    from alpa_cfp_bench.progress import Progress

    on = target(arguments.target)
    hosts = (on.hosts, on.devices_per_host) if on.hosts > 1 else (on.devices_per_host,)
    shape = hosts if arguments.mesh is None else mesh_shape(arguments.mesh)
    step, state, batch = _step(arguments, on.num_devices)
    with Progress(1) as progress:
        progress.say(f"planning {arguments.model} for {on.name}, {quantities.a_mesh(shape)}")
        option = PlanOptions(
            costs="compile" if arguments.costs is None else arguments.costs,
            memory_budget_bytes=memory_budget_bytes,
            database=arguments.database,
            seed=arguments.seed,
            progress=progress.is_bar,
        )
        return autoshard(step, on.mesh(shape), state, batch, donate_argnums=0, option=option)


def _check(arguments: argparse.Namespace) -> None:
    if arguments.ray is not None:
        raise UserError("--target plans for devices that are not here: leave --ray out")
    if arguments.micro_batches is not None:
        raise UserError("--target plans a step without micro-batches: leave --micro-batches out")
    model, batch = arguments.model, arguments.batch
    if model not in SIZES and model not in PUBLISHED:
        raise UserError(f"there is no model {model!r}: --model takes one of {', '.join((*SIZES, *PUBLISHED))}")
    if batch is not None and (model not in PUBLISHED or batch < 1):
        raise UserError(f"--batch is {batch}: it is the samples, at least 1, of a step of {', '.join(PUBLISHED)}")
    if model in PUBLISHED and arguments.size:
        raise UserError(f"{model} has its published size: --size changes one of {', '.join(SIZES)}")


def _step(arguments: argparse.Namespace, num_devices: int) -> tuple[Any, Any, Any]:
    """The training step, and the shapes of its state and batch; as many samples as the devices divide."""
    import jax

    if arguments.model in PUBLISHED:
        from alpa_cfp_bench.workloads.published_programs import program_of

        case = PUBLISHED[arguments.model]
        case = replace(case, mesh=(1, num_devices))
        if arguments.batch is not None:
            case = replace(case, batch=arguments.batch, micro_batches=1)
        program = program_of(case)
        return program.step, program.state, program.batch
    from alpa_cfp_bench.workloads.model import training_step
    from alpa_cfp_bench.workloads.models import abstract

    model = abstract(arguments.model, read_size(arguments.model, arguments.size))
    return training_step(model, jax.value_and_grad), model.state, model.batch
