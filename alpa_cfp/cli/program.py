"""A program of the user's own on a command line: `alpa-cfp plan my_module:train_step --args my_module:example_args`.

Takes the command line; gives the plan. The module is imported from the current folder, or as Python finds it.
Invariant: it is imported after the number of JAX's devices is set.
"""

import argparse
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from alpa_cfp import quantities
from alpa_cfp.cli.process import UserError
from alpa_cfp.cli.targets import check_needs_no_target, use_cpu_only
from alpa_cfp.cli.user_module import FORM, attribute_of, read_path, said
from alpa_cfp.cli.workload import check_database, check_devices, start_jax

if TYPE_CHECKING:
    from alpa_cfp.plan.plan import Plan

_Arguments = tuple[tuple[Any, ...], dict[str, Any]]
# Options that choose one of the bench's models, or where only alpa runs, by their attributes.
_OF_MODELS = ("model", "size", "micro_batches", "ray", "hosts", "devices_per_host", "batch")


@dataclass(frozen=True, slots=True)
class NamedMesh:
    """The axes of a mesh by name, such as data=2,model=4."""

    axis_names: tuple[str, ...]
    shape: tuple[int, ...]


def add_program(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that name a program."""
    parser.add_argument(
        "program", nargs="?", metavar="MODULE:FUNCTION",
        help="a function of your own to plan, in a module of the current folder or an installed one, with --args and "
        "--mesh NAME=N,...; without it, one of the bench's models",
    )  # fmt: skip
    parser.add_argument(
        "--args", metavar="MODULE:NAME",
        help="with MODULE:FUNCTION: its arguments: a tuple of pytrees of arrays or shapes, a pair (args, kwargs), or a "
        "function that gives either",
    )  # fmt: skip
    parser.add_argument(
        "--donate", nargs="+", type=int, default=[], metavar="N",
        help="with MODULE:FUNCTION: the positions of the arguments that are donated",
    )  # fmt: skip
    parser.add_argument(
        "--batch-argnums", nargs="+", type=int, default=[], metavar="N",
        help="with MODULE:FUNCTION: the positions of the arguments with samples; a step that does not fit into the "
        "memory budget may then run in micro-batches",
    )  # fmt: skip


def check_is_model(arguments: argparse.Namespace) -> None:
    """Checks that a command line without a program has none of its options.

    Raises:
        UserError: it has.
    """
    for name in ("args", "donate", "batch_argnums"):
        if getattr(arguments, name):
            option = name.replace("_", "-")
            raise UserError(f"--{option} is for a program of your own: name it first, as {FORM}")


def plan_for_program(arguments: argparse.Namespace, memory_budget_bytes: int | None) -> "Plan":
    """Plans the program that the command line names.

    Raises:
        UserError: the command line is wrong, or the program is none that can be planned.
        CFPError: as for `autoshard`.
    """
    for name in _OF_MODELS:
        if getattr(arguments, name) not in (None, []):
            option = name.replace("_", "-")
            raise UserError(f"--{option} is for the bench's models: leave it out, or leave {arguments.program} out")
    function_path = read_path(arguments.program, "the program")
    if arguments.args is None:
        raise UserError(f"--args is missing: it names the arguments of {arguments.program}, as my_module:example_args")
    args_path = read_path(arguments.args, "--args")
    named = None if arguments.mesh is None and arguments.target else read_mesh(arguments.mesh)
    if arguments.target:
        use_cpu_only()
        start_jax(1)
    else:
        assert named is not None
        check_needs_no_target(arguments)
        start_jax(prod(named.shape))
        check_devices(named.shape)
    check_database(arguments.database)
    function = _function(arguments.program, function_path)
    args, kwargs = _arguments(arguments.args, args_path, function)
    for name, numbers in (("--donate", arguments.donate), ("--batch-argnums", arguments.batch_argnums)):
        if wrong := [number for number in numbers if not 0 <= number < len(args)]:
            raise UserError(f"{name} {wrong[0]}: the positional arguments in {arguments.args} are 0 to {len(args) - 1}")
    return _planned(arguments, function, args, kwargs, named, memory_budget_bytes)


def read_mesh(text: str | None) -> NamedMesh:
    """Reads the text of a mesh with names.

    Raises:
        UserError: it is none.
    """
    parts = [re.fullmatch(r"([A-Za-z_]\w*)=([1-9]\d{0,4})", part) for part in (text or "").split(",")]
    names = [part[1] for part in parts if part]
    if len(names) < len(parts) or len(set(names)) < len(names):
        given = "there is no --mesh" if text is None else f"{text!r} is no mesh with names"
        raise UserError(f"{given}: for a program of your own, say the mesh as --mesh data=2,model=4, each name once")
    return NamedMesh(tuple(names), tuple(int(part[2]) for part in parts if part))


def _planned(
    arguments: argparse.Namespace,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    named: NamedMesh | None,
    memory_budget_bytes: int | None,
) -> "Plan":
    import jax

    from alpa_cfp import PlanOptions, target
    from alpa_cfp.jit.autoshard import Boundary, plan_function
    from alpa_cfp.search.errors import MemoryBudgetError
    from alpa_cfp_bench.progress import Progress

    if arguments.target:
        on = target(arguments.target)
        mesh = on.mesh() if named is None else on.mesh(named.shape, named.axis_names)
    else:
        assert named is not None
        devices = jax.local_devices()[: prod(named.shape)]
        mesh = jax.make_mesh(named.shape, named.axis_names, devices=devices)
    with Progress(1) as progress:
        progress.say(f"planning {arguments.program} on {quantities.a_mesh(tuple(mesh.axis_sizes))}")
        options = PlanOptions(
            costs=arguments.costs or ("compile" if arguments.target else "measure"),
            memory_budget_bytes=memory_budget_bytes,
            database=arguments.database,
            device_kind=arguments.device_kind,
            seed=arguments.seed,
            progress=progress.is_bar,
        )
        try:
            boundary = Boundary(tuple(arguments.donate), batch_argnums=tuple(arguments.batch_argnums))
            return plan_function(function, mesh, args, kwargs, boundary, options)
        except MemoryBudgetError as error:
            raise UserError(str(error)) from error


def _function(text: str, path: tuple[str, str]) -> Callable[..., Any]:
    from alpa_cfp.jit.at_first_call import AutoshardedFunction

    found = attribute_of(text, path)
    if not callable(found):
        raise UserError(f"{text} is a {type(found).__name__}, and not a function that can be planned")
    return found.fn if isinstance(found, AutoshardedFunction) else found


def _arguments(
    text: str, path: tuple[str, str], function: Callable[..., Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments in an attribute, or given by it, as `(args, kwargs)`."""
    given = attribute_of(text, path)
    if callable(given):
        try:
            given = given()
        except Exception as error:
            raise UserError(f"{text} fails when it is called: {said(error)}") from error
    if type(given) is not tuple:
        raise UserError(
            f"{text} is a {type(given).__name__}, and is to be a tuple with an element for each argument, a pair "
            "(args, kwargs), or a function that gives either"
        )
    pair: Any = given
    is_pair = (
        len(given) == 2
        and type(pair[0]) is tuple
        and type(pair[1]) is dict
        and all(isinstance(name, str) for name in pair[1])
    )
    # (state, batch) may look like a pair: then the function does not take it as one.
    if is_pair and (_misfit(function, *pair) is None or _misfit(function, given, {}) is not None):
        args, kwargs = pair
    else:
        args, kwargs = given, {}
    if misfit := _misfit(function, args, kwargs):
        raise UserError(f"the function does not take the arguments in {text}: {misfit}")
    return args, kwargs


def _misfit(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Why a function does not take arguments; None if it does, or if it does not say which it takes."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return None
