"""Ctrl-C at moments at which Python or a library loses it: takes a block, and sees that it is interrupted after all.

Python raises KeyboardInterrupt wherever it happens to be. In a destructor or a callback of the garbage collector (JAX
has one) it prints the exception and goes on; a C extension that is being imported fails with another error.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_AGAIN_S = 0.02


@contextlib.contextmanager
def lost_interrupts_come_again() -> Iterator[None]:
    """While the block runs, send an interruption that Python could not raise where it was once more, shortly after."""
    before = sys.unraisablehook

    def again(lost: "UnraisableHookArgs") -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            before(lost)
            return
        later = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), signal.SIGINT))
        later.daemon = True
        later.start()

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def interrupted_afterwards() -> Iterator[None]:
    """Let the block end before Ctrl-C interrupts, whatever it raised."""
    if threading.current_thread() is not threading.main_thread():  # others are not interrupted
        yield
        return
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            raise KeyboardInterrupt
