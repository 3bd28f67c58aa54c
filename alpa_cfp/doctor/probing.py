"""Runs probes in processes of their own, and reads what they say.

Takes the names of probes; gives their answers. Invariants: a probe that crashes, hangs or prints rubbish gives an
answer that says so; no process is left when the context ends, whatever ended it.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from alpa_cfp.doctor.probes import MARK

TIMEOUT_S = 180.0
_LONGEST = 400


@dataclass(frozen=True, slots=True)
class Answer:
    """What a probe said.

    Attributes:
        subjects: What it found, by subject; one with an "error" failed.
        ending: How its process ended, if not well: "" or, say, "it was killed by SIGSEGV".
    """

    subjects: dict[str, dict[str, Any]] = field(default_factory=dict)
    ending: str = ""

    def error(self, subject: str) -> str:
        """Why a subject could not be looked at; "" if it could."""
        if subject in self.subjects:
            return self.subjects[subject].get("error", "")
        return f"the process that looked at it {self.ending}" if self.ending else "nothing was found out about it"

    def value(self, subject: str, name: str) -> Any:
        """A value that was found, or None."""
        return self.subjects.get(subject, {}).get(name)


class Probes:
    """The running probes of one examination; made by `started`."""

    def __init__(self, running: dict[str, tuple[subprocess.Popen[bytes], IO[bytes]]], timeout_s: float) -> None:
        self._running, self._answers = running, {}
        self._timeout_s, self._end = timeout_s, time.monotonic() + timeout_s

    def answer(self, name: str) -> Answer:
        """What a probe says; waits for it. An empty answer for one that was not started."""
        if name in self._running and name not in self._answers:
            self._answers[name] = self._wait(*self._running[name])
        return self._answers.get(name, Answer())

    def _wait(self, process: subprocess.Popen[bytes], output: IO[bytes]) -> Answer:
        try:
            ending = _ending(process.wait(max(self._end - time.monotonic(), 0)))
        except subprocess.TimeoutExpired:
            _kill(process)
            ending = f"did not end within {self._timeout_s:.0f} s"
        output.seek(0)
        return Answer(_subjects(output.read().decode(errors="replace")), ending)


@contextlib.contextmanager
def started(names: Iterable[str], timeout_s: float = TIMEOUT_S) -> Iterator[Probes]:
    """Start probes by name, all at once, for the time of the context."""
    with contextlib.ExitStack() as stack:
        running = {}
        for name in names:
            output = stack.enter_context(tempfile.TemporaryFile())
            process = subprocess.Popen(
                [sys.executable, "-m", "alpa_cfp.doctor.probes", name],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                # Looking at a GPU must not take its memory from whoever uses it.
                env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "3"},
            )
            stack.callback(_kill, process)
            running[name] = (process, output)
        yield Probes(running, timeout_s)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


def _ending(code: int) -> str:
    if code == 0:
        return ""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _subjects(text: str) -> dict[str, dict[str, Any]]:
    subjects: dict[str, dict[str, Any]] = {}
    for line in text.splitlines():
        if not line.startswith(MARK):
            continue
        try:
            subjects.update(json.loads(line.removeprefix(MARK)))
        except json.JSONDecodeError:  # cut off by a crash: what is missing is said to be missing
            continue
    for found in subjects.values():
        if "error" in found:
            found["error"] = without_paths(found["error"])
    return subjects


def without_paths(text: str) -> str:
    """A message without the folders of this user and this environment, and not longer than a few lines."""
    folders = {
        sysconfig.get_path("purelib"): "site-packages",
        sys.prefix: "the environment",
        str(Path.cwd()): ".",
        str(Path.home()): "~",
    }
    for folder, word in sorted(folders.items(), key=lambda item: -len(item[0])):
        if len(folder) > 1:
            text = text.replace(folder, word)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
