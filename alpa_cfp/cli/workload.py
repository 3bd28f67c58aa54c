"""The arguments of the commands that run a model on a mesh, and what can be wrong with them.

Takes a parser, or what it has read; gives a `Case`. Invariant: jax is imported by `start` only, after it is known how
many devices it shall have.
"""

import argparse
import dataclasses
import importlib.util
import os
import re
from math import prod
from pathlib import Path

from alpa_cfp.bench.case import Case
from alpa_cfp.bench.devices import DEVICES_FLAG, ask_for_virtual_devices
from alpa_cfp.cli.errors import UserError
from alpa_cfp.workloads.sizes import SIZES, TINY, Size, mesh_shape

_FIELDS = tuple(field.name for field in dataclasses.fields(Size))


def add_workload(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what is run."""
    parser.add_argument("--model", default="gpt", metavar="NAME", help=f"one of {', '.join(SIZES)} (default gpt)")
    parser.add_argument(
        "--mesh",
        default="2x4",
        metavar="AxB",
        help="the devices as a mesh of two axes, such as 2x4 or 1x8 (default 2x4)",
    )
    parser.add_argument(
        "--size", nargs="+", default=[], metavar="NAME=N",
        help=f'"tiny", or changes to the model\'s usual size: {", ".join(_FIELDS)}, each where it has a meaning',
    )  # fmt: skip
    parser.add_argument(
        "--micro-batches", type=int, metavar="N", help="accumulate gradients over N parts of the batch (default: none)"
    )
    parser.add_argument(
        "--database", type=Path, metavar="FILE",
        help="the profile database: what CFP has measured is kept there for the next plan "
        "(default $ALPA_CFP_DATABASE, else the one in your cache directory)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the order in which programs are timed (default 0)")


def read_workload(arguments: argparse.Namespace) -> Case:
    """The case that is meant.

    Raises:
        UserError: there is no such model, mesh, size or number of micro-batches.
    """
    model, mesh, count = arguments.model, arguments.mesh, arguments.micro_batches
    if model not in SIZES:
        raise UserError(f"there is no model {model!r}: --model takes one of {', '.join(SIZES)}")
    if not re.fullmatch(r"[1-9]\d{0,4}x[1-9]\d{0,4}", mesh):
        raise UserError(f"{mesh!r} is no mesh: --mesh takes two sizes of at least 1, such as 2x4 or 1x8")
    size = _size(SIZES[model], arguments.size)
    if count is not None and (count < 1 or size.batch % count):
        raise UserError(f"a batch of {size.batch} samples cannot be cut into {count} equal parts (--micro-batches)")
    return Case(model, mesh, size, None if count == 1 else count)


def start(case: Case) -> None:
    """Import jax and alpa, with as many devices as the case's mesh needs.

    Raises:
        UserError: there are fewer devices, or alpa cannot be imported.
    """
    ask_for_virtual_devices(case.num_devices)
    try:
        import alpa  # noqa: F401
        import jax
    except ImportError as error:
        raise UserError(f"{error}. `alpa-cfp doctor` says what is missing and how to install it") from error
    devices, shape = jax.local_devices(), mesh_shape(case.mesh)
    if len(devices) >= prod(shape):
        return
    few = f"a {case.mesh} mesh needs {prod(shape)} devices, and there are {len(devices)} ({devices[0].device_kind})"
    if devices[0].platform == "cpu":
        flags = os.environ.get("XLA_FLAGS", "")
        raise UserError(
            f"{few}, because XLA_FLAGS is {flags!r}: leave {DEVICES_FLAG} out of it, or give a smaller --mesh"
        )
    raise UserError(f"{few}: give a smaller --mesh, or set JAX_PLATFORMS=cpu to run on virtual devices of the CPU")


def check_database(path: Path | None) -> None:
    """See that what is there is a profile database: opened for writing, another file would be set aside.

    Raises:
        ProfileDatabaseError: it is none, or cannot be read.
    """
    if path is not None and path.exists():
        from alpa_cfp.database import ProfileDatabase

        ProfileDatabase.open(path, readonly=True).close()


def check_can_write(path: Path | None, option: str) -> None:
    """See before the work whether its result can be written.

    Raises:
        UserError: there is no such directory, or it cannot be written to.
    """
    if path is None:
        return
    where = path if path.exists() else path.absolute().parent
    if path.is_dir() or not where.exists() or not os.access(where, os.W_OK):
        reason = "is a directory" if path.is_dir() else "cannot be written: is there such a directory, and is it yours?"
        raise UserError(f"{option} {path} {reason}")


def check_can_draw(path: Path | None) -> None:
    """See before the work whether a picture can be drawn.

    Raises:
        UserError: matplotlib is not installed, or does not know the file's format.
    """
    if path is None:
        return
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"--picture {path} has no format: its name ends with .png, .svg or .pdf")
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("--picture needs matplotlib, which is not installed: pip install matplotlib, or leave it out")


def _size(usual: Size, words: list[str]) -> Size:
    size = usual
    for word in words:
        if word == "tiny":
            size = TINY
            continue
        name, _, value = word.partition("=")
        if name not in _FIELDS or not re.fullmatch(r"[1-9]\d{0,8}", value):
            raise UserError(f'--size {word!r} is neither "tiny" nor NAME=N with a NAME of {", ".join(_FIELDS)}')
        size = dataclasses.replace(size, **{name: int(value)})
    return size
