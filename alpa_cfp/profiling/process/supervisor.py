"""Supervise the worker process, in which programs are measured and may hang or crash.

Takes a `Setup` and tasks; gives the worker's profiles, and a failed one for the program at which the worker hung or
died. Each host of a mesh of several has a supervisor of its own. Invariants: each task finishes a program at least, or
finds suspects (`phases`), or raises; the worker never outlives `close`, nor this process; no other process is ever
ended. This process computes nothing and does not import JAX, so it answers whatever a program does to the worker.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

from alpa_cfp.database import Profile
from alpa_cfp.errors import ProfilingError
from alpa_cfp.profiling.options import MeasureOptions
from alpa_cfp.profiling.process.protocol import (
    Activity,
    Finished,
    MessageConnection,
    ProgressFile,
    Ready,
    Setup,
    Stage,
    Suspected,
    Task,
    TaskDone,
    TaskEvent,
    failed,
)

# -P: a file of the user's directory that is called like a module of ours must not be imported instead.
COMMAND = (sys.executable, "-P", "-m", "alpa_cfp.profiling.process.worker")
_START_LIMIT_S = 120.0
_ERROR_OUTPUT_BYTES = 2000  # of the end of what the worker wrote to stderr
_CONNECTION_LOST = (EOFError, BrokenPipeError, ConnectionResetError)
_ACTIVITIES: dict[Stage, str] = {"compile": "being compiled", "run": "being run", "inspect": "being looked into"}
_LIMITS: dict[Stage, str] = {"compile": "compile_limit_s", "run": "run_limit_s", "inspect": "compile_limit_s"}
# Signals that no program sends to itself.
_EXTERNAL_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Supervisor:
    """Starts a worker process, gives it tasks and ends it.

    Args:
        options: The time limits of a program.
        command: Starts the worker; three arguments are added (see `worker`).
    """

    def __init__(self, options: MeasureOptions, command: Sequence[str] = COMMAND) -> None:
        self._options = options
        self._command = tuple(command)
        self._setup: Setup | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: MessageConnection | None = None
        self._progress_file: BinaryIO | None = None
        self._errors: BinaryIO | None = None
        self._errors_before = 0

    def is_alive(self) -> bool:
        """Returns True; a call to another process that returns shows that this one answers."""
        return True

    def start(self, setup: Setup) -> None:
        """Start a worker and wait until it has its devices, and on several hosts until it has found the others.

        Does nothing if there is a worker with this setup.

        Raises:
            ProfilingError: it cannot be started, or has other devices than the setup.
        """
        if self._process is not None and self._process.poll() is None and setup == self._setup:
            return
        self.close()
        self._setup = setup
        try:
            self._launch(setup)
            self._set_up(setup)
        except BaseException:
            self.close()
            raise

    def do(self, task: Task) -> Generator[TaskEvent]:
        """Do a task in the worker; gives each event as it comes.

        `TaskDone` comes last. Where it does not, the worker is lost, and the last event names the program and the
        reason if these are known.

        Raises:
            ProfilingError: there is no worker, or it died before it began with a program.
        """
        if self._connection is None or self._progress_file is None:
            raise ProfilingError.no_worker("its process ended")
        progress = ProgressFile(self._progress_file.fileno())
        progress.clear()
        self._errors_before, kills = self._error_bytes(), _out_of_memory_kills()
        done, finished = False, set[int]()
        try:
            self._connection.send(task)
            while not done:
                overdue = self._wait(progress)
                if overdue is not None:
                    if overdue.index not in finished:
                        yield Finished(overdue.index, self._timed_out(overdue))
                    return
                message = self._connection.recv()
                done = isinstance(message, TaskDone)
                if isinstance(message, Finished):
                    finished.add(message.index)
                yield message
        except _CONNECTION_LOST:
            activities = progress.read()
            reason = self._end_reason()
            if not activities:
                raise ProfilingError.no_worker(reason) from None
            unfinished = [each for each in activities if each.index not in finished]
            if len(unfinished) == 1:
                yield self._died_at(unfinished[0], reason, memory_was_short=_out_of_memory_kills() != kills)
            elif unfinished:
                yield Suspected(tuple(each.index for each in unfinished))
        finally:
            if not done:
                self.close()

    def kill(self) -> None:
        """End the worker, if there is one; in any thread. What another thread waits for then ends as by a crash."""
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own

    def close(self) -> None:
        """End the worker; a second call does nothing."""
        self.kill()
        process, self._process = self._process, None
        if process is not None:
            process.wait()
        for each in (self._connection, self._progress_file, self._errors):
            if each is not None:
                each.close()
        self._connection = self._progress_file = self._errors = None
        self._errors_before = 0

    def _launch(self, setup: Setup) -> None:
        self._progress_file, self._errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        ours, theirs = socket.socketpair()
        self._connection = MessageConnection(ours.detach())
        progress = self._progress_file.fileno()
        with theirs:
            arguments = [str(number) for number in (theirs.fileno(), progress, os.getpid())]
            try:
                self._process = _popen(
                    [*self._command, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._errors,
                    pass_fds=(theirs.fileno(), progress),
                    env=_environment(setup),
                    start_new_session=True,  # Ctrl-C is for this process, which then ends the other one
                )
            except OSError as error:
                raise ProfilingError.no_worker(str(error)) from error

    def _set_up(self, setup: Setup) -> None:
        assert self._connection is not None
        try:
            self._connection.send(setup)
            if not self._connection.poll(_START_LIMIT_S):
                raise ProfilingError.no_worker(f"it was not ready after {_START_LIMIT_S:g} s")
            ready: Ready = self._connection.recv()
        except _CONNECTION_LOST:
            raise ProfilingError.no_worker(self._end_reason()) from None
        if ready.refusal:
            raise ProfilingError.no_worker(ready.refusal)

    def _wait(self, progress: ProgressFile) -> Activity | None:
        """Wait for a message, or the end of the connection; gives an activity that is over its limit if it comes first.

        Raises:
            ProfilingError: the worker has not begun in the time that one run may take.
        """
        assert self._connection is not None
        limits = {stage: getattr(self._options, name) for stage, name in _LIMITS.items()}
        # Waking up disturbs what is timed, so it is rare.
        interval_s = min(1.0, *(limit / 10 for limit in limits.values()))
        waiting_since = time.monotonic()
        while not self._connection.poll(interval_s):
            activities = progress.read()
            for each in activities:
                if each.elapsed_s > limits[each.stage]:
                    return each
            if not activities and time.monotonic() - waiting_since > limits["run"]:
                raise ProfilingError.no_worker(f"it has not begun for {limits['run']:g} s")
        return None

    def _timed_out(self, activity: Activity) -> Profile:
        limit = _LIMITS[activity.stage]
        value = getattr(self._options, limit)
        return failed(f"it was still {_ACTIVITIES[activity.stage]} after {limit}={value:g}", "timed_out")

    def _died_at(self, activity: Activity, reason: str, *, memory_was_short: bool) -> Finished:
        """The profile of the program at which the worker ended.

        Args:
            activity: The one that was going on.
            reason: How the worker ended.
            memory_was_short: Whether the system has ended processes meanwhile, because memory was short.
        """
        code = (self._process.returncode if self._process is not None else None) or 0
        message = f"the process ended while this program was {_ACTIVITIES[activity.stage]}: {reason}"
        if code == -signal.SIGKILL and memory_was_short:
            return Finished(activity.index, failed(message, "out_of_memory"))
        return Finished(activity.index, failed(message, "crashed"), is_permanent=-code not in _EXTERNAL_SIGNALS)

    def _end_reason(self) -> str:
        """How the worker ended, with the end of its error output; it is over, or about to be."""
        assert self._process is not None
        assert self._errors is not None
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return "it closed its connection"
        how = f"exit code {code}" if code >= 0 else _signal_name(-code)
        # No seek: both processes share the file's position.
        start = max(self._errors_before, self._error_bytes() - _ERROR_OUTPUT_BYTES)
        output = os.pread(self._errors.fileno(), _ERROR_OUTPUT_BYTES, start).decode(errors="replace").strip()
        return f"{how}\n{output}" if output else how

    def _error_bytes(self) -> int:
        assert self._errors is not None
        return os.fstat(self._errors.fileno()).st_size


def _popen(command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
    """Start a process in a thread that lives as long as this process.

    Linux ends the worker (see `worker`) with the thread that has started it, not with the process.
    """
    launcher = _launchers.get(os.getpid())  # a fork has no threads
    if launcher is None:
        launcher = _launchers[os.getpid()] = ThreadPoolExecutor(1, "starts-workers")
    return launcher.submit(lambda: subprocess.Popen[bytes](command, **options)).result()


_launchers: dict[int, ThreadPoolExecutor] = {}


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if number == signal.SIGKILL:
        return f"{name}, as somebody else ends a process, or the system when memory is short"
    return name


def _out_of_memory_kills() -> int | None:
    """The number of processes that this machine's system has ended for want of memory; None if it does not count."""
    with contextlib.suppress(OSError), open("/proc/vmstat") as counters:
        for line in counters:
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    return None


def _environment(setup: Setup) -> dict[str, str]:
    """This process' environment with its module search path and the setup's platform."""
    paths = [path or os.getcwd() for path in sys.path]
    own = {"PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": setup.platform}
    return {**os.environ, **own, **setup.environment}
