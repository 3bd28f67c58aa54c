"""A real browser with a keyboard and a pointer: Chromium's DevTools protocol through a pipe, without any network.

Takes a page; gives what its elements say after keys were pressed. Invariant: the browser ends with the `with` block.
"""

import fcntl
import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
NO_BROWSER = f"no browser: none of {', '.join(NAMES)} is on PATH"
# Enough for a machine that does other work; it takes two seconds on one that does not.
LIMIT_S = 90
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
# What a key is called, its number, and the text that it types: only by that are links and buttons pressed.
_KEYS = {
    "Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " "), "Escape": (27, ""),
    "ArrowRight": (39, ""), "ArrowLeft": (37, ""), "Home": (36, ""), "End": (35, ""),
}  # fmt: skip


class Page:
    """A page in a browser."""

    def __init__(self, commands: BinaryIO, answers: BinaryIO):
        self._commands = commands
        self._answers = answers
        self._count = 0
        self._session: dict[str, str] = {}

    def open(self, address: str) -> None:
        """Show a page, and wait until it is loaded."""
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = {"sessionId": session}
        self._send("Page.enable")
        # Else an element has the focus, but is not shown as having it.
        self._send("Emulation.setFocusEmulationEnabled", enabled=True)
        self._send("Page.navigate", url=address)
        while self._receive().get("method") != "Page.loadEventFired":
            pass

    def says(self, expression: str) -> Any:
        """The value of an expression in JavaScript; of a promise what it is kept with."""
        result = self._send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise ValueError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press and release a key."""
        number, text = _KEYS[key]
        same = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": number}
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        for each in (down, {"type": "keyUp"}):
            self._send("Input.dispatchKeyEvent", modifiers=8 if shift else 0, **same, **each)

    def point_at(self, x: float, y: float) -> None:
        """Move the pointer."""
        self._send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def _send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters, **self._session}
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while (answer := self._receive()).get("id") != self._count:
            pass
        if "error" in answer:
            raise ValueError(f"{method}: {answer['error']}")
        return answer["result"]

    def _receive(self) -> dict[str, Any]:
        text = bytearray()
        while (letter := self._answers.read(1)) != b"\0":
            if not letter:
                raise EOFError("the browser has ended")
            text += letter
        return json.loads(text)


@contextmanager
def opened(page: Path, fragment: str = "") -> Iterator[Page]:
    """A file in a browser of its own, whose profile lies beside it."""
    read, mine = os.pipe()
    ours, write = os.pipe()
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={page.parent / 'profile'}", "--remote-debugging-pipe"]
    # The browser reads from 3 and writes to 4, which must not be taken by what is still to become the other one.
    theirs = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 10) for each in (read, write)]
    places = [(os.POSIX_SPAWN_DUP2, each, place) for place, each in enumerate(theirs, 3)]
    silent = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
    process = os.posix_spawn(command[0], command, os.environ, file_actions=[*places, silent])
    for each in (read, write, *theirs):
        os.close(each)
    # What hangs ends with an error, since its pipe is closed then.
    limit = threading.Timer(LIMIT_S, os.kill, (process, signal.SIGKILL))
    limit.start()
    with os.fdopen(mine, "wb") as commands, os.fdopen(ours, "rb") as answers:
        try:
            shown = Page(commands, answers)
            shown.open(f"{page.as_uri()}{fragment}")
            yield shown
        finally:
            limit.cancel()
            os.kill(process, signal.SIGTERM)
            os.waitpid(process, 0)
