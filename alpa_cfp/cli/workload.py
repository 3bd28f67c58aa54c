"""The arguments of commands that run a model on a mesh, and their checks.

Invariant: only `start` imports jax, after the number of its devices is known.
"""

import argparse
import dataclasses
import importlib
import importlib.util
import os
import re
from math import prod
from pathlib import Path

from alpa_cfp import quantities
from alpa_cfp.cli.process import UserError, interrupted_afterwards
from alpa_cfp.file_kinds import file_kind
from alpa_cfp_bench.case import Case, Cluster
from alpa_cfp_bench.devices import DEVICES_FLAG, ask_for_virtual_devices
from alpa_cfp_bench.workloads.sizes import SIZES, TINY, Size, mesh_shape

_FIELDS = tuple(field.name for field in dataclasses.fields(Size))
_OF_TEXT, _OF_IMAGES = ("batch", "hidden", "layers", "heads", "sequence", "vocabulary"), ("batch", "image", "channels")
DEFAULT_MODEL, DEFAULT_MESH = "gpt", "2x4"
# The fields of a size that each model uses.
FIELDS_OF = {
    "gpt": _OF_TEXT,
    "llama": _OF_TEXT,
    "moe": _OF_TEXT,
    "wide_resnet": (*_OF_IMAGES, "layers"),
    "bert": _OF_TEXT,
    "mlp": ("batch", "hidden"),
    "conv": (*_OF_IMAGES, "layers"),
    "unet": (*_OF_IMAGES, "hidden", "heads", "sequence"),
    "mlp_wide": ("batch", "hidden"),
    "gpt_wide": _OF_TEXT,
    "gpt_vocabulary": _OF_TEXT,
    "llama_long": _OF_TEXT,
    "t5": _OF_TEXT,
    "vit": (*_OF_IMAGES, "hidden", "layers", "heads"),
    "lstm": ("batch", "hidden", "layers", "sequence", "vocabulary"),
    "gpt_bf16": _OF_TEXT,
}


def add_workload(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that select the model, its size and the mesh."""
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, metavar="NAME", help=f"one of {', '.join(SIZES)} (default {DEFAULT_MODEL})"
    )
    parser.add_argument(
        "--mesh",
        default=DEFAULT_MESH,
        metavar="AxB",
        help="the devices as a mesh, such as 2x4, or 1x8 for one axis; of more axes, such as 2x2x2, for plans without "
        f"alpa (default {DEFAULT_MESH})",
    )
    parser.add_argument(
        "--size", nargs="+", default=[], metavar="NAME=N",
        help='"tiny", or changes to the model\'s usual size (see below)',
    )  # fmt: skip
    parser.add_argument(
        "--micro-batches", type=int, metavar="N", help="accumulate gradients over N parts of the batch (default: none)"
    )
    parser.add_argument(
        "--database", type=Path, metavar="FILE",
        help="the profile database: what CFP has measured is kept there for the next plan "
        "(default $ALPA_CFP_DATABASE, else the one in your cache directory)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the order in which programs are timed (default 0)"
    )


def describe_sizes() -> str:
    """The models and their usual sizes, a line each, for help texts."""
    width = max(map(len, FIELDS_OF))
    return "\n".join(
        f"  {model.ljust(width)}  {' '.join(f'{name}={getattr(SIZES[model], name)}' for name in names)}"
        for model, names in FIELDS_OF.items()
    )


def read_workload(arguments: argparse.Namespace) -> Case:
    """The selected model, mesh and sizes.

    Raises:
        UserError: there is no such model, mesh, size or number of micro-batches.
    """
    model, mesh, count = arguments.model, arguments.mesh, arguments.micro_batches
    if model not in SIZES:
        raise UserError(f"there is no model {model!r}: --model takes one of {', '.join(SIZES)}")
    check_mesh(mesh)
    size = read_size(model, arguments.size)
    if count is not None and (count < 1 or size.batch % count):
        raise UserError(f"a batch of {size.batch} samples cannot be cut into {count} equal parts (--micro-batches)")
    return Case(model, mesh, size, None if count == 1 else count)


def check_mesh(mesh: str) -> None:
    """Checks the text of a mesh.

    Raises:
        UserError: it has not two sizes or more.
    """
    if not re.fullmatch(r"[1-9]\d{0,4}(x[1-9]\d{0,4}){1,7}", mesh):
        raise UserError(f"{mesh!r} is no mesh: --mesh takes two to eight sizes of at least 1, such as 2x4 or 1x8")


def check_alpa_has(case: Case, *, what: str) -> None:
    """Checks that Alpa, which does something for a command, has such meshes.

    Args:
        case: The case with the mesh.
        what: What Alpa does, as a part of the command line.

    Raises:
        UserError: the mesh has more than two axes.
    """
    if len(mesh_shape(case.mesh)) > 2:
        raise UserError(
            f"{what} runs alpa, whose meshes have two axes, and --mesh is {case.mesh}: leave one of them out"
        )


def start(case: Case, cluster: Cluster | None = None) -> None:
    """Imports jax and alpa, with as many devices as the mesh needs; with a cluster, its hosts have the devices.

    Raises:
        UserError: there are fewer devices or none, alpa cannot be imported, or XLA does not know one of XLA_FLAGS.
    """
    start_jax(case.num_devices, "alpa")
    if cluster is None:
        check_devices(mesh_shape(case.mesh))


def start_jax(num_devices: int, *packages: str) -> None:
    """Imports jax with this many devices, and packages.

    Raises:
        UserError: a package cannot be imported, or XLA does not know one of XLA_FLAGS.
    """
    if _has_unknown_flags(os.environ.get("XLA_FLAGS", "")):
        _check_flags()
    ask_for_virtual_devices(num_devices)
    try:
        with interrupted_afterwards():
            for package in (*packages, "jax"):
                importlib.import_module(package)
    except ImportError as error:
        raise UserError(f"{error}. `alpa-cfp doctor` says what is missing and how to install it") from error


def check_devices(shape: tuple[int, ...]) -> None:
    """Checks that this process has the devices of a mesh.

    Raises:
        UserError: there are fewer devices, or none.
    """
    import jax

    try:
        devices = jax.local_devices()
    except (RuntimeError, AssertionError) as error:  # what JAX raises for a platform that it does not find
        reason = str(error) or "it finds none"
        raise UserError(
            f"JAX cannot start the devices of JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')!r}: {reason}. "
            "Set JAX_PLATFORMS=cpu to run on virtual devices of the CPU; `alpa-cfp doctor` says more"
        ) from error
    if len(devices) >= prod(shape):
        return
    mesh, kind = quantities.a_mesh(shape), devices[0].device_kind
    few = f"{mesh} needs {prod(shape)} devices, and there are {len(devices)} ({kind})"
    if devices[0].platform == "cpu":
        flags = os.environ.get("XLA_FLAGS", "")
        raise UserError(
            f"{few}, because XLA_FLAGS is {flags!r}: leave {DEVICES_FLAG} out of it, or give a smaller --mesh"
        )
    raise UserError(f"{few}: give a smaller --mesh, or set JAX_PLATFORMS=cpu to run on virtual devices of the CPU")


def check_database(path: Path | None) -> None:
    """Checks that the user's file is a profile database, because opening another file for writing sets it aside.

    Args:
        path: The path on the command line; None for that in the environment, if there is one.

    Raises:
        UserError: it is no file.
        ProfileDatabaseError: it is no database, or cannot be read.
        OSError: it cannot be accessed.
    """
    from alpa_cfp.database import ENVIRONMENT_VARIABLE, ProfileDatabase, database_path

    if path is None and not os.environ.get(ENVIRONMENT_VARIABLE):
        return
    named = database_path(path)
    kind = file_kind(named)
    if kind in ("directory", "other"):
        raise UserError(f"the profile database cannot be {named}, which is no ordinary file: name another one")
    if kind == "file":
        ProfileDatabase.open(named, readonly=True).close()


def _has_unknown_flags(flags: str) -> bool:
    """Whether there are flags besides the one that this command may set."""
    return bool(re.sub(rf"{DEVICES_FLAG}=\d+(?!\S)", "", flags).strip())


def _check_flags() -> None:
    """Tries the flags in another process, because XLA ends a process with unknown flags. This takes seconds."""
    from alpa_cfp.doctor import probing

    with probing.started(["jax"]) as probes:
        error = probes.answer("jax").error("devices")
    if "flag" in error.lower():
        raise UserError(
            f"XLA cannot use XLA_FLAGS={os.environ['XLA_FLAGS']!r}: {error.rstrip('.')}. Unset it, or mend it"
        )


def check_can_draw(path: Path | None) -> None:
    """Checks that a picture can be drawn.

    Raises:
        UserError: matplotlib is not installed or broken, or does not know the file's format.
    """
    if path is None:
        return
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"--picture {path} has no format: its name ends with .png, .svg or .pdf")
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("--picture needs matplotlib, which is not installed: pip install matplotlib, or leave it out")
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise UserError(
            f"--picture needs matplotlib, which does not import: {error}. Leave it out, or: pip install "
            "--force-reinstall matplotlib"
        ) from error


def read_size(model: str, words: list[str]) -> Size:
    """The size of a model: "tiny", or its usual one with changes such as "layers=4".

    Raises:
        UserError: there is no such number, or the model does not use it.
    """
    size = SIZES[model]
    for word in words:
        if word == "tiny":
            size = TINY
            continue
        name, _, value = word.partition("=")
        if name not in _FIELDS or not re.fullmatch(r"[1-9]\d{0,8}", value):
            raise UserError(f'--size {word!r} is neither "tiny" nor NAME=N with a NAME of {", ".join(_FIELDS)}')
        if name not in FIELDS_OF[model]:
            raise UserError(f"--size {word!r}: {model} has no such size, only {', '.join(FIELDS_OF[model])}")
        size = dataclasses.replace(size, **{name: int(value)})
    return size
