"""`alpa-cfp bench --target`: its arguments, their checks, and the comparison on devices that are not here.

Prints the comparison, and writes it as JSON. Invariants: nothing runs; a method that fails or takes too long costs its
own row. Exit code 0: a method has a modelled step; 1: none has; 2: wrong use.
"""

import argparse
import json
import shlex
import shutil
import sys
from typing import TYPE_CHECKING

from alpa_cfp.cli.files import check_are_different, check_can_write
from alpa_cfp.cli.pipelines import PIPESHARD
from alpa_cfp.cli.process import UserError, interrupted_afterwards
from alpa_cfp.cli.targets import case_of, check_target, start_for_target
from alpa_cfp.database import database_path
from alpa_cfp_bench.case import CFP, ILP, PROPAGATION

if TYPE_CHECKING:
    from alpa_cfp_bench.targets.case import TargetCase
    from alpa_cfp_bench.targets.comparison import Limits
    from alpa_cfp_bench.targets.rankings import Row

NONE_MODELLED = 1
LIMIT_S = 900.0
# In the order of the table.
ON_TARGETS = (CFP, ILP, "data-parallel", "zero2", "zero3", "megatron", PROPAGATION)
# What needs devices.
_NOT_HERE = {
    "rounds": "nothing is timed",
    "copies": "nothing is timed",
    "picture": "it draws what was timed",
    "save_plan": "`alpa-cfp plan --target --out FILE` writes CFP's plan",
    "hosts": "the target says how many hosts there are",
    "devices_per_host": "the target says how many devices a host has",
}
_OF_TARGETS = ("batch", "memory_mb", "limit_s")


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that only a comparison on a target has."""
    parser.add_argument(
        "--memory-mb", type=float, metavar="N",
        help="with --target: what one device may hold (default: what a program can have of the chip's memory)",
    )  # fmt: skip
    parser.add_argument(
        "--limit-s", type=float, metavar="N",
        help=f"with --target: seconds after which a planning or a compiling is given up (default {LIMIT_S:g})",
    )  # fmt: skip


def check_are_here(arguments: argparse.Namespace) -> None:
    """Checks that a command line without a target has no argument that belongs to one.

    Raises:
        UserError: it has.
    """
    for name in _OF_TARGETS:
        if getattr(arguments, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} goes with a target: name it, such as --target h100:1x8")


def run(arguments: argparse.Namespace) -> int:
    """Runs `alpa-cfp bench --target`.

    Raises:
        UserError: the command line is wrong.
        TargetError, TargetCompilerError: there is no such target, or its compiler is not installed.
    """
    methods = _check(arguments)
    start_for_target(arguments)
    # These import jax, which has been told by now to use the CPU.
    with interrupted_afterwards():
        from alpa_cfp import target
        from alpa_cfp.targets.topology import compiler_version
        from alpa_cfp_bench.targets.comparison import Limits
        from alpa_cfp_bench.targets.table import is_modelled, lines, to_content

    case = case_of(arguments)
    compiler = compiler_version(target(case.target))
    budget = None if arguments.memory_mb is None else int(arguments.memory_mb * 1e6)
    limits = Limits(
        LIMIT_S if arguments.limit_s is None else arguments.limit_s,
        database_path(arguments.database),
        memory_budget_bytes=budget,
    )
    rows = _compared(case, methods, limits)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print("\n".join(lines(case, rows, limits, compiler, width)))
    if arguments.json is not None:
        content = to_content(case, rows, limits, compiler, shlex.join(["alpa-cfp", *sys.argv[1:]]))
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")
        print(f"\nwritten: {arguments.json}")
    return 0 if is_modelled(rows) else NONE_MODELLED


def _compared(case: "TargetCase", methods: list[str], limits: "Limits") -> "list[Row]":
    """The rows of the table, while it is said what is being done."""
    from alpa_cfp_bench.progress import Progress
    from alpa_cfp_bench.targets.comparison import rows_of_case
    from alpa_cfp_bench.targets.table import NAMES, named

    rows = []
    with Progress(len(methods)) as progress:
        progress.say(f"tracing {case}")

        def begin(method: str) -> None:
            progress.say(f"planning and compiling: {named({'method': method})['method']}")

        for row in rows_of_case(case, [NAMES[method] for method in methods], limits, begin):
            rows.append(named(row))
            progress.advance()
    return rows


def _check(arguments: argparse.Namespace) -> list[str]:
    """The methods to compare, once the command line has been checked."""
    if arguments.method == PIPESHARD:
        raise UserError("--target plans a step on one mesh: leave --method pipeshard out")
    for name, reason in _NOT_HERE.items():
        if getattr(arguments, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} needs devices, and those of --target are not here: {reason}")
    check_target(arguments)
    if arguments.memory_mb is not None and arguments.memory_mb <= 0:
        raise UserError(f"--memory-mb is {arguments.memory_mb:g}, and must be above zero")
    if arguments.limit_s is not None and arguments.limit_s <= 0:
        raise UserError(f"--limit-s is {arguments.limit_s:g}, and must be above zero")
    check_are_different({"--json": arguments.json, "--database": database_path(arguments.database)})
    check_can_write(arguments.json, "--json")
    check_can_write(arguments.database, "--database")
    return _methods(arguments.methods)


def _methods(names: list[str] | None) -> list[str]:
    for name in names or ():
        if name not in ON_TARGETS:
            raise UserError(f"{name!r} cannot be compared on a target: of --methods, {', '.join(ON_TARGETS)} can")
    return list(dict.fromkeys(names or ON_TARGETS))
