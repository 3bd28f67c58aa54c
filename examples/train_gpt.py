"""Trains a byte-level GPT on the sources of Python's standard library: split by CFP, by Alpa's ILP, and serially.

Takes nothing that is not on every machine. Each method starts from the same parameters and sees the same batches, so
only rounding may tell their losses apart. How far rounding alone takes a run shows in one run more, the serial one with
the sequences of each batch in reverse order; the tables at the end hold the others against it, and the sample shows
what the model has learned. Exit code 0: they agree; 1: they do not; 2: the command line or a checkpoint does not fit;
130: Ctrl-C.

On a CPU it runs on 8 virtual devices that share the machine's cores: the times say nothing about a machine with 8
devices. With jax for GPUs it runs on those. What it is made of is in the folder gpt.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

# Read when jax starts, so before it is imported; it counts where jax finds no GPU. What the user has set stays.
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax
from gpt.checkpoints import Checkpoints, SettingsDifferError
from gpt.loop import Run, train
from gpt.model import Size
from gpt.report import difference_table, save_picture, table, verdict
from gpt.sampling import sample
from gpt.text import standard_library
from gpt.training import METHODS, REORDERED, Settings, make_step, params_on_one_device

PROMPT = """import os
import sys


class Reader:
    def __init__(self"""
ALL = (
    "one after the other, then the serial one again with the sequences of each batch in reverse order, "
    "which shows how far rounding alone takes a run"
)


class UserError(Exception):
    """The command line does not fit the machine, or the checkpoints."""


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says; gives back the exit code."""
    arguments = make_parser().parse_args(argv)
    try:
        return run(arguments)
    except (UserError, SettingsDifferError, OSError) as error:
        print(f"train_gpt.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    methods = "; ".join(f"{name}: {words}" for name, words in METHODS.items())
    parser = argparse.ArgumentParser(
        description="Train a byte-level GPT on the sources of Python's standard library, split over devices by CFP, "
        "by Alpa's ILP, and serially, and hold their losses against each other.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--method", choices=[*METHODS, "all"], default="all", help=f"{methods}; all: {ALL}")
    add("--steps", type=_count, default=500, help="length of the whole run, by which the learning rate falls")
    add("--mesh", default="2x4", metavar="AxB", help="logical mesh of devices that cfp and ilp split the step over")
    add(
        "--costs",
        choices=["estimate", "measure"],
        default="estimate",
        help="whether CFP counts what parts of the step cost (seconds) or measures it (minutes, once)",
    )
    add("--checkpoint", type=Path, metavar="DIR", help="save checkpoints there; with all, in a folder for each method")
    add("--checkpoint-every", type=_count, default=100, metavar="N", help="steps between checkpoints; also at the end")
    add("--resume", action="store_true", help="go on from the newest checkpoint, whichever method has written it")
    add("--stop-at", type=_count, metavar="STEP", help="stop after this step, as if interrupted")
    add("--sample", type=int, default=600, metavar="N", help="bytes to draw from the model that the first method made")
    add("--prompt", default=PROMPT, help="what the sample goes on from")
    add("--temperature", type=float, default=0.8, help="of the sample")
    add("--seed", type=int, default=0, help="of parameters, batches and sample")
    add("--batch-size", type=_count, default=16, help="sequences a step")
    add("--learning-rate", type=float, default=4e-3, help="after the warmup")
    for name in ("layers", "hidden", "heads", "length"):
        add(f"--{name}", type=_count, default=getattr(Size(), name), help="of the model")
    add("--picture", type=Path, metavar="FILE", help="draw the curves (needs matplotlib)")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Train with each method, compare, sample.

    Raises:
        UserError: the mesh, the model's size or the checkpoints do not fit.
        SettingsDifferError: a checkpoint is of a run with other settings.
        OSError: there is no text, or a checkpoint cannot be read or written.
    """
    mesh = parse_mesh(arguments.mesh)
    if arguments.hidden % (2 * arguments.heads):
        raise UserError(f"--hidden {arguments.hidden} is not divisible by twice --heads {arguments.heads}")
    if not arguments.prompt or not arguments.temperature > 0:
        raise UserError("--prompt must not be empty, and --temperature must be above zero")
    if arguments.method == "all" and arguments.batch_size < 2:
        raise UserError("--batch-size 1: --method all needs 2 or more, a batch of one has no other order")
    if arguments.seed < 0:
        raise UserError(f"--seed {arguments.seed}: it must not be below zero")
    if arguments.picture is not None and find_spec("matplotlib") is None:
        raise UserError("--picture needs matplotlib: pip install matplotlib")
    size = Size(arguments.layers, arguments.hidden, arguments.heads, arguments.length)
    settings = Settings(arguments.steps, arguments.batch_size, arguments.learning_rate, arguments.seed, size)
    methods = [*METHODS, REORDERED] if arguments.method == "all" else [arguments.method]
    folders = checkpoint_folders(arguments, methods)
    text = standard_library()
    print(
        f"jax {jax.__version__}, {len(jax.local_devices())} {jax.default_backend()} devices; "
        f"{text.training.size:,} bytes of Python to train on, {text.validation.size:,} held out"
    )

    runs: dict[str, Run] = {}
    for method in methods:
        folder = folders.get(method)
        with nullcontext() if folder is None else Checkpoints(folder) as checkpoints:
            resume = arguments.resume and (len(methods) == 1 or has_checkpoints(folder))
            runs[method] = result = train(
                make_step(method, mesh, arguments.costs),
                settings,
                method,
                checkpoints,
                resume=resume,
                checkpoint_every=arguments.checkpoint_every,
                stop_at=arguments.stop_at,
            )
        print(summary(method, result))
        if result.interrupted:
            saved = "nothing was saved" if folder is None else f"saved in {folder}; go on with --resume"
            print(f"interrupted after step {len(result.curve.losses)}; {saved}", file=sys.stderr)
            return 130
    return report(runs, settings, arguments)


def report(runs: dict[str, Run], settings: Settings, arguments: argparse.Namespace) -> int:
    """Print the tables, the sample and whether the runs agree; gives back the exit code."""
    curves = {method: result.curve for method, result in runs.items()}
    print(f"\nlosses in nats a byte, training as the mean since the row before\n{table(curves)}")
    if arguments.picture is not None:
        save_picture(curves, arguments.picture)
    if arguments.sample > 0:
        state = next(iter(runs.values())).state
        drawn = sample(
            state.apply_fn,
            params_on_one_device(state),
            arguments.prompt,
            arguments.sample,
            arguments.temperature,
            settings.seed,
            settings.size.length,
        )
        print(f"\n{'-' * 30} sample {'-' * 30}\n{drawn}\n{'-' * 68}")
    if len(runs) == 1:
        return 0
    agree, words = verdict(curves)
    print(
        "\nlargest relative difference so far from the training losses of the serial run"
        f"\n(reordered: that run with the sequences of each batch in reverse order)\n{difference_table(curves)}"
        f"\n\n{words}"
    )
    return 0 if agree else 1


def summary(method: str, result: Run) -> str:
    """The times of a run, in one line."""
    if result.first_step_s is None:
        return f"{method}: nothing left to do after step {len(result.curve.losses)}"
    later = "" if result.step_s is None else f", then {1e3 * result.step_s:.0f} ms a step (median)"
    return f"{method}: first step {result.first_step_s:.1f} s with planning and compiling{later}"


def parse_mesh(text: str) -> tuple[int, int]:
    """The sizes of the two axes.

    Raises:
        UserError: the text is no mesh, or there are not so many devices.
    """
    sizes = text.split("x")
    if len(sizes) != 2 or not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise UserError(f"--mesh {text}: it must be two numbers above zero, such as 2x4")
    mesh = int(sizes[0]), int(sizes[1])
    if mesh[0] * mesh[1] > len(jax.local_devices()):
        raise UserError(f"--mesh {text} needs {mesh[0] * mesh[1]} devices, there are {len(jax.local_devices())}")
    return mesh


def checkpoint_folders(arguments: argparse.Namespace, methods: Sequence[str]) -> dict[str, Path]:
    """Where each method saves; empty where nothing is saved.

    Raises:
        UserError: there is nothing to go on from, or something that would be written over.
    """
    folder: Path | None = arguments.checkpoint
    if folder is None:
        if arguments.resume:
            raise UserError("--resume needs --checkpoint DIR")
        return {}
    folders = {method: folder / method if len(methods) > 1 else folder for method in methods}
    found = [each for each in folders.values() if has_checkpoints(each)]
    if arguments.resume and not found:
        raise UserError(f"--resume: there is no checkpoint in {' or '.join(map(str, folders.values()))}")
    if found and not arguments.resume:
        raise UserError(f"{found[0]} has checkpoints already: give --resume to go on from there, or another folder")
    return folders


def has_checkpoints(folder: Path | None) -> bool:
    """Whether a run has saved there: orbax makes a folder for each step, called by its number."""
    return folder is not None and folder.is_dir() and any(each.name.isdecimal() for each in folder.iterdir())


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: it must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
