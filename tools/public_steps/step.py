"""`Step`: a training step of somebody else's program, ready to be planned and run.

A step is a function of positional arguments that are pytrees of arrays. Invariant: the function is the repository's
own; what is static in it is bound, and nothing in it is written again.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Step:
    """A training step and its first arguments.

    Attributes:
        function: The step.
        arguments: The arguments of the first step.
        following: The arguments of the next step, of these ones and the result.
        loss: The loss in a result.
        batch: The positions of the arguments whose arrays have a first dim of samples. Data parallelism splits it
            where the devices divide it.
        donated: The positions of the arguments that the program donates.
    """

    function: Callable[..., Any]
    arguments: Arguments
    following: Callable[[Arguments, Any], Arguments]
    loss: Callable[[Any], Any]
    batch: tuple[int, ...]
    donated: tuple[int, ...] = ()


class CallOfStepError(Exception):
    """Ends a program's `main` at the first call of its step, and holds the call."""

    def __init__(self, function: Callable[..., Any], arguments: Arguments) -> None:
        super().__init__(getattr(function, "__name__", "step"))
        self.function = function
        self.arguments = arguments


def first_call(main: Callable[[], Any]) -> tuple[Callable[..., Any], Arguments]:
    """The function and the arguments of the `CallOfStepError` that ends `main`."""
    try:
        main()
    except CallOfStepError as call:
        return call.function, call.arguments
    raise RuntimeError("main ended without a call of its step")


@contextlib.contextmanager
def importing_from(*folders: Path) -> Iterator[None]:
    """Let modules of these folders be imported as top-level ones, as when a program is started in its own folder."""
    missing = [folder for folder in folders if not folder.is_dir()]
    if missing:
        raise FileNotFoundError(f"{missing[0]} is no folder: is the checkout of this repository there?")
    paths = [str(folder) for folder in folders]
    sys.path[:0] = paths
    try:
        yield
    finally:
        for path in paths:
            sys.path.remove(path)
