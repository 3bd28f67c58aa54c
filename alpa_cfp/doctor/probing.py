"""Runs probes in separate processes and reads their answers.

Invariants: a probe that crashes, hangs or prints garbage gives an answer with an error; no process is left when the
context ends, however it ends.
"""

import contextlib
import json
import os
import re
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
# The message with which XLA ends the process, behind severity, time, thread, file and line.
_FATAL = re.compile(r"F\d{4} [\d:.]+ +\d+ [\w./]+:\d+\] (.+)")
# For a flag with a wrong value, the line before the fatal one has the reason.
_WRONG_VALUE = re.compile(r"E\d{4} [\d:.]+ +\d+ command_line_flags\.cc:\d+\] (.+)")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a probe.

    Attributes:
        subjects: Its results by subject; one with an "error" failed.
        ending: How its process failed, such as "was killed by SIGSEGV", with its last message; "" if it did not fail.
    """

    subjects: dict[str, dict[str, Any]] = field(default_factory=dict)
    ending: str = ""

    def error(self, subject: str) -> str:
        """The error of a subject; "" if there is none."""
        if subject in self.subjects:
            return self.subjects[subject].get("error", "")
        return f"the process that looked at it {self.ending}" if self.ending else "nothing was found out about it"

    def value(self, subject: str, name: str) -> Any:
        """A value of a subject, or None."""
        return self.subjects.get(subject, {}).get(name)


class Probes:
    """The running probes of one examination; made by `started`."""

    def __init__(self, running: "dict[str, _Running]", timeout_s: float) -> None:
        self._running, self._answers = running, {}
        self._timeout_s, self._end = timeout_s, time.monotonic() + timeout_s

    def answer(self, name: str) -> Answer:
        """Waits for the answer of a probe. That of a probe that was not started is empty."""
        if name in self._running and name not in self._answers:
            self._answers[name] = self._wait(self._running[name])
        return self._answers.get(name, Answer())

    def _wait(self, running: "_Running") -> Answer:
        try:
            ending = _ending(running.process.wait(max(self._end - time.monotonic(), 0)))
        except subprocess.TimeoutExpired:
            _kill(running.process)
            ending = f"did not end within {self._timeout_s:.0f} s"
        if ending and (last := _last_words(_text(running.complaints))):
            ending = f"{ending}: {last}"
        return Answer(_subjects(_text(running.output)), ending)


@dataclass(frozen=True, slots=True)
class _Running:
    """A probe's process, and the files that its stdout and stderr go to."""

    process: subprocess.Popen[bytes]
    output: IO[bytes]
    complaints: IO[bytes]


@contextlib.contextmanager
def started(names: Iterable[str], timeout_s: float = TIMEOUT_S) -> Iterator[Probes]:
    """Starts probes by name, all at once, and ends them with the context."""
    with contextlib.ExitStack() as stack:
        running = {}
        for name in names:
            output, complaints = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            process = subprocess.Popen(
                # Without warnings, so that the last line of a process is the reason of its end.
                [sys.executable, "-W", "ignore", "-m", "alpa_cfp.doctor.probes", name],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=complaints,
                # Looking at a GPU must not take its memory from whoever uses it.
                env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "2"},
            )
            stack.callback(_kill, process)
            running[name] = _Running(process, output, complaints)
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


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _last_words(text: str) -> str:
    """The reason of a process's end: the line of XLA's fatal error, or else the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for pattern in (_WRONG_VALUE, _FATAL):
        if found := next(filter(None, map(pattern.match, lines)), None):
            return without_paths(found[1])
    return without_paths(lines[-1]) if lines else ""


def _subjects(text: str) -> dict[str, dict[str, Any]]:
    subjects: dict[str, dict[str, Any]] = {}
    for line in text.splitlines():
        if not line.startswith(MARK):
            continue
        try:
            subjects.update(json.loads(line.removeprefix(MARK)))
        except json.JSONDecodeError:  # cut off by a crash; the subject is then reported as missing
            continue
    for found in subjects.values():
        if "error" in found:
            found["error"] = without_paths(found["error"])
    return subjects


def without_paths(text: str) -> str:
    """Removes the folders of the user and of the environment from a message, and shortens it to a few lines."""
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
