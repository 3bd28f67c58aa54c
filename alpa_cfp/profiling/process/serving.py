"""The main function of worker processes: `python -m MODULE CONNECTION PROGRESS PARENT`.

Takes two open file descriptors (see `protocol`) and the id of the process that started this one (see `supervisor`);
serves until the connection ends. Invariant: this process ends with its parent, whatever it is doing.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from alpa_cfp.profiling.process.protocol import MessageConnection, ProgressFile

_PARENT_CHECK_S = 1.0
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def run(serve: Callable[[MessageConnection, ProgressFile], None]) -> None:
    """Serve until the parent ends the connection, or ends.

    Args:
        serve: Answers what comes on the connection; returns, or raises an error of the connection.
    """
    connection, progress, parent = (int(argument) for argument in sys.argv[1:])
    if sys.platform == "linux":
        # Also if this process is stopped then. By parent Linux means the thread that has started this process.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with MessageConnection(connection) as to_parent:
        try:
            serve(to_parent, ProgressFile(progress))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return  # the parent needs nothing more


def _end_with(parent: int) -> None:
    """End this process once it has another parent; a busy worker does not notice that its connection has ended."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os._exit(1)
