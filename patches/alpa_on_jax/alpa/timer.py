"""Replacement in `alpa.timer`: a measurement that an exception ended does not stand in the way of the next one.

Alpa's timers are process-global and are started and stopped around code that may fail, on bad input for example.
"""

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from alpa_on_jax.replacing import replace_in_class


def apply(module: ModuleType) -> None:
    """Replace how a timer starts."""
    replace_in_class(module._Timer, start)


def start(self: Any, sync_func: Callable[[], None] | None = None) -> None:
    """Start the timer; if it still runs, what it measured has failed, and is dropped."""
    if self.started:
        self.start_times.pop()
    if sync_func is not None:
        sync_func()
    self.start_time = time.time()
    self.start_times.append(self.start_time)
    self.started = True
