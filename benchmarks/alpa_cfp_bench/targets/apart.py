"""A function in a process of its own, with a time limit.

Takes a function of a module that can be imported, and its arguments; gives an `Outcome`: the value, or why there is
none. Invariants: whatever the function does (raise, crash, hang, start processes), the caller goes on, and no process
is left; what it writes to stderr is not shown.
"""

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_OWN = ("alpa_cfp.", "alpa_on_jax.")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What came of a function in a process of its own: its value, or why there is none."""

    value: T | None
    failure: str = ""


def apart(function: Callable[..., T], *args: Any, limit_s: float) -> Outcome[T]:
    """Call a function in a process of its own.

    Args:
        function: Of a module that can be imported.
        args: Its arguments.
        limit_s: After so many seconds the process, with those that it has started, is ended.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    # A module is more than a pipe holds, and `start` would wait forever for a process that ended before it read all.
    with tempfile.NamedTemporaryFile() as call, tempfile.NamedTemporaryFile() as errors:
        pickle.dump((function, args), call)
        call.flush()
        process = context.Process(target=_answer, args=(theirs, call.name, errors.name))
        process.start()
        theirs.close()
        try:
            if not ours.poll(limit_s):
                return Outcome(None, f"not done after {limit_s:g} s")
            return ours.recv()
        except EOFError:
            process.join()
            return Outcome(None, f"its process ended with exit code {process.exitcode}{_last_words(errors.name)}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid or 0, signal.SIGKILL)
            process.kill()
            process.join()
            ours.close()


def _last_words(errors: str) -> str:
    """What a process has written last before it ended, after a colon."""
    lines = Path(errors).read_text(errors="replace").split("\n")
    return next((f": {line.strip()}" for line in reversed(lines) if line.strip()), "")


def _answer(connection: Connection, call: str, errors: str) -> None:
    os.setsid()  # what it starts, such as CBC, can be ended with it
    # Compilers log there, each at its start; what a process says when it crashes is kept.
    with open(errors, "wb") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    try:
        function, args = pickle.loads(Path(call).read_bytes())
        outcome = Outcome(function(*args))
    except Exception as error:  # noqa: BLE001 - whatever it is, it costs this cell alone
        # The words of this project's own errors say enough.
        is_own = type(error).__module__.startswith(_OWN)
        outcome = Outcome(None, str(error) if is_own else f"{type(error).__name__}: {error}")
    connection.send(outcome)
