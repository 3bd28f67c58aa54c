"""Prepare programs for measuring in the background, while planning goes on.

Takes programs as soon as it is known that they will be measured, and what prepares them (`Measurer.prepare`); gives
nothing: they are compiled when they are measured. Invariants: one call prepares at a time, and none once `settle` has
returned; an error is left to measuring, which meets it again.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence

from alpa_cfp.errors import ProfilingError
from alpa_cfp.spmd.errors import SpmdError
from alpa_cfp.spmd.module.hlo_module import HloModule


class Preparation:
    """Prepares programs in the order in which they come.

    Args:
        prepare: Prepares programs.
    """

    def __init__(self, prepare: Callable[[Sequence[HloModule]], None]) -> None:
        self._prepare = prepare
        self._lock = threading.Lock()
        self._waiting: list[HloModule] = []
        self._thread: threading.Thread | None = None

    def add(self, modules: Sequence[HloModule]) -> None:
        """Prepare these, too."""
        with self._lock:
            self._waiting += modules
            if self._waiting and self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()

    def settle(self) -> None:
        """Wait for those that are being prepared; the others are left to measuring, which uses all cores."""
        with self._lock:
            self._waiting.clear()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                modules, self._waiting = self._waiting, []
                if not modules:
                    self._thread = None
                    return
            with contextlib.suppress(ProfilingError, SpmdError):
                self._prepare(modules)
