"""How far a long command is: a bar where stderr is a terminal, elsewhere a line for each thing that begins."""

import contextlib
import os
import shutil
import sys
import termios
from collections.abc import Iterator
from types import TracebackType
from typing import NoReturn, TextIO

from tqdm import tqdm

# Narrower than this, there is no room for a bar beside its words.
_NARROW = 70
# Where `termios.tcgetattr` has them.
_LOCAL_MODES = 3


class Progress:
    """Says what is being done; a context manager that takes its bar away.

    Args:
        total: How many steps there are in all.
        stream: Where it says so; None for stderr.
    """

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self.is_bar = self._stream.isatty()
        self._bar = _bar(total, self._stream) if self.is_bar else None
        self._quiet = contextlib.ExitStack()

    def say(self, words: str) -> None:
        """Begin something."""
        if self._bar is None:
            print(words, file=self._stream, flush=True)
        else:
            self._bar.set_description_str(words)

    def advance(self) -> None:
        """A step is over."""
        if self._bar is not None:
            self._bar.update()

    def __enter__(self) -> "Progress":
        if self.is_bar:
            self._quiet.enter_context(_without_echo_of_ctrl_c(self._stream))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        self._quiet.close()


@contextlib.contextmanager
def _without_echo_of_ctrl_c(stream: TextIO) -> Iterator[None]:
    """Keep a terminal from showing Ctrl-C as ^C, which would push the bars down to where nobody takes them away."""
    terminal = _own_terminal(stream)
    if terminal is None:
        yield
        return
    before = termios.tcgetattr(terminal)
    quiet = [*before]
    quiet[_LOCAL_MODES] &= ~termios.ECHOCTL
    termios.tcsetattr(terminal, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        if _own_terminal(stream) is not None:  # put into the background since, perhaps
            termios.tcsetattr(terminal, termios.TCSANOW, before)


def _own_terminal(stream: TextIO) -> int | None:
    """The terminal's descriptor, if this process may change it: one in the background would be stopped for that."""
    try:
        terminal = stream.fileno()
        return terminal if os.tcgetpgrp(terminal) == os.getpgrp() else None
    except OSError:  # it has no descriptor, or not that of this process' terminal
        return None


def _bar(total: int, stream: TextIO) -> "tqdm[NoReturn]":
    columns = shutil.get_terminal_size().columns
    form = "{desc:<34} {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} [{elapsed}]"
    if columns < _NARROW:
        form = "{percentage:3.0f}% {desc}"
    return tqdm(total=total, file=stream, bar_format=form, dynamic_ncols=True, leave=False)
