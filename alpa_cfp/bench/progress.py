"""How far a long command is: a bar where stderr is a terminal, elsewhere a line for each thing that begins."""

import sys
from types import TracebackType
from typing import TextIO

from tqdm import tqdm


class Progress:
    """Says what is being done; a context manager that takes its bar away.

    Args:
        total: How many steps there are in all.
        stream: Where it says so; None for stderr.
    """

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self.is_bar = self._stream.isatty()
        form = "{desc:<34} {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} [{elapsed}]"
        self._bar = tqdm(total=total, file=self._stream, bar_format=form, leave=False) if self.is_bar else None

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
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
