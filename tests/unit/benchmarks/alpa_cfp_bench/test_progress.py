"""Progress is a bar on a terminal, and a line for each thing that begins elsewhere."""

import io
import os
import re
import subprocess
import sys

import pytest

from alpa_cfp_bench.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_there_is_a_line_for_each_thing_and_no_bar() -> None:
    stream = io.StringIO()
    with Progress(3, stream) as progress:
        progress.say("planning")
        progress.advance()
        progress.say("timing")
        progress.advance()
    assert stream.getvalue() == "planning\ntiming\n"


def test_a_terminal_has_a_bar_that_goes_away() -> None:
    stream = Terminal()
    with Progress(2, stream) as progress:
        progress.say("planning")
        progress.advance()
        progress.advance()
    written = stream.getvalue()
    assert "planning" in written
    assert "0/2" in written
    assert "\n" not in written
    assert written.rstrip(" \r").endswith("]") or written.endswith("\r")


@pytest.mark.parametrize("columns", [40, 80])
def test_a_bar_is_never_wider_than_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    with Progress(3, stream) as progress:
        progress.say("planning data-parallel once more")
        progress.advance()
    drawn = re.split(r"[\r\n]", stream.getvalue())
    assert max(map(len, drawn)) <= columns
    assert any("0%" in line and "planning data-parallel" in line for line in drawn)


def test_a_terminal_does_not_show_ctrl_c_among_the_bars_and_does_again_afterwards() -> None:
    inside = (
        "import termios\nfrom alpa_cfp_bench.progress import Progress\n"
        "shows = lambda: bool(termios.tcgetattr(2)[3] & termios.ECHOCTL)\nbefore = shows()\n"
        "with Progress(1): within = shows()\nprint('shows', before, within, shows())"
    )
    code = f"import pty, sys\npty.spawn([sys.executable, '-c', {inside!r}])"
    result = subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip
    assert "shows True False True" in result.stdout
