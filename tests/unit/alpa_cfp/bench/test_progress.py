"""Progress is a bar on a terminal, and a line for each thing that begins elsewhere."""

import io

from alpa_cfp.bench.progress import Progress


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
