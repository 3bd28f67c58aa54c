"""Measure programs in a process of their own, which may hang or crash.

Takes what the process must have (`Setup`) and groups of modules; gives a profile for each module that was finished, and
a failed one for the module at which the process hung or died. Invariants: each call finishes a program at least, or
knows of others at which of them it may have been (`phases`), or raises; the process never outlives this object's
`close`, nor this process; only the process that was started here is ever ended.
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

from alpa_cfp.database import Profile
from alpa_cfp.errors import ProfilingError
from alpa_cfp.profiling.options import MeasureOptions
from alpa_cfp.profiling.process.events import Finished, Stage, failed
from alpa_cfp.profiling.process.phases import Done, measure_in_phases
from alpa_cfp.profiling.process.protocol import (
    Activity,
    CompileTask,
    Messages,
    ProgressFile,
    Ready,
    Setup,
    Suspected,
    Task,
    TaskDone,
)

if TYPE_CHECKING:
    from alpa_cfp.spmd.module.hlo_module import HloModule

# -P: a file of the user's directory that is called like a module of ours must not be imported instead.
COMMAND = (sys.executable, "-P", "-m", "alpa_cfp.profiling.process.worker")
_START_LIMIT_S = 120.0
_LAST_WORDS = 2000  # bytes of what a process wrote before it died
_CONNECTION_LOST = (EOFError, BrokenPipeError, ConnectionResetError)


class SubprocessRunner:
    """A process that measures groups of programs on a mesh; a context manager that ends it.

    It starts with the first group, is used for all later ones, and is started anew after it hung or died, and where the
    setup has changed.

    Args:
        setup: Gives what the process needs; asked before each group.
        options: The limits and the number of samples.
        command: What starts the process; three arguments are added (see `worker`).
    """

    def __init__(self, setup: Callable[[], Setup], options: MeasureOptions, command: Sequence[str] = COMMAND) -> None:
        self._make_setup = setup
        self._options = options
        self._command = tuple(command)
        self._setup: Setup | None = None
        self._suspects = set[bytes]()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Messages | None = None
        self._board_file: BinaryIO | None = None
        self._errors: BinaryIO | None = None
        self._words_before = 0

    @property
    def pid(self) -> int | None:
        """The id of the process, while there is one."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process, if it is not there, and wait until it has its devices.

        Raises:
            ProfilingError: it cannot be started, or has other devices than the client.
        """
        setup = self._make_setup()
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

    def measure(
        self, modules: Sequence["HloModule"], drawn: random.Random, samples: int | None = None
    ) -> Generator[Finished]:
        """Measure a group, each program as often as `samples` or else the options say.

        What is not finished at the end, because the process was lost before, can be given again.

        Raises:
            ProfilingError: as `start` and `do`.
        """

        def do(task: CompileTask | Task) -> Generator[Done]:
            self.start()
            return self.do(task)

        return measure_in_phases(modules, samples or self._options.samples, drawn, self._suspects, do)

    def do(self, task: CompileTask | Task) -> Generator[Done]:
        """Do a task in the process that was started; where it is lost, no `TaskDone` comes.

        Raises:
            ProfilingError: there is no process, or it died before it began with a program.
        """
        if self._connection is None or self._board_file is None:
            raise ProfilingError.no_worker("its process ended")
        board = ProgressFile(self._board_file.fileno())
        board.clear()
        self._words_before, kills = self._written_bytes(), _kills_for_memory()
        done, finished = False, set[int]()
        try:
            self._connection.send(task)
            while not done:
                overdue = self._wait(board)
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
            at = board.read()
            reason = self._last_words()
            if not at:
                raise ProfilingError.no_worker(reason) from None
            unfinished = [each for each in at if each.index not in finished]
            if len(unfinished) == 1:
                yield self._ended_at(unfinished[0], reason, by_system=_kills_for_memory() != kills)
            elif unfinished:
                yield Suspected(tuple(each.index for each in unfinished))
        finally:
            if not done:
                self.close()

    def close(self) -> None:
        """End the process; a second call does nothing."""
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own
            process.wait()
        for each in (self._connection, self._board_file, self._errors):
            if each is not None:
                each.close()
        self._connection = self._board_file = self._errors = None
        self._words_before = 0

    def __enter__(self) -> "SubprocessRunner":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _launch(self, setup: Setup) -> None:
        self._board_file, self._errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        ours, theirs = socket.socketpair()
        self._connection = Messages(ours.detach())
        board = self._board_file.fileno()
        with theirs:
            arguments = [str(number) for number in (theirs.fileno(), board, os.getpid())]
            try:
                self._process = _started(
                    [*self._command, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._errors,
                    pass_fds=(theirs.fileno(), board),
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
            raise ProfilingError.no_worker(self._last_words()) from None
        if ready.refusal:
            raise ProfilingError.no_worker(ready.refusal)

    def _wait(self, board: ProgressFile) -> Activity | None:
        """Wait for a message, or the end of the connection; gives what takes too long if that comes first.

        Raises:
            ProfilingError: the process has not begun in the time that one run may take.
        """
        assert self._connection is not None
        limits = {stage: getattr(self._options, name) for stage, name in _LIMITS.items()}
        # Waking up disturbs what is timed, so it is rare.
        look_every_s = min(1.0, *(limit / 10 for limit in limits.values()))
        waiting_since = time.monotonic()
        while not self._connection.poll(look_every_s):
            at = board.read()
            for each in at:
                if each.elapsed_s > limits[each.stage]:
                    return each
            if not at and time.monotonic() - waiting_since > limits["run"]:
                raise ProfilingError.no_worker(f"it has not begun for {limits['run']:g} s")
        return None

    def _timed_out(self, at: Activity) -> Profile:
        limit = _LIMITS[at.stage]
        value = getattr(self._options, limit)
        return failed(f"it was still {_DOING[at.stage]} after {limit}={value:g}", "timed_out")

    def _ended_at(self, at: Activity, reason: str, *, by_system: bool) -> Finished:
        """The profile of the program at which the process ended.

        Args:
            at: What went on.
            reason: How the process ended.
            by_system: Whether the system has ended processes meanwhile, because memory was short.
        """
        code = (self._process.returncode if self._process is not None else None) or 0
        message = f"the process ended while this program was {_DOING[at.stage]}: {reason}"
        if code == -signal.SIGKILL and by_system:
            return Finished(at.index, failed(message, "out_of_memory"))
        return Finished(at.index, failed(message, "crashed"), is_lasting=-code not in _FROM_OUTSIDE)

    def _last_words(self) -> str:
        """How the process ended, and what it wrote last; it is over, or about to be."""
        assert self._process is not None
        assert self._errors is not None
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return "it closed its connection"
        how = f"exit code {code}" if code >= 0 else _signal_name(-code)
        # No seek: both processes have the place in the file in common.
        start = max(self._words_before, self._written_bytes() - _LAST_WORDS)
        words = os.pread(self._errors.fileno(), _LAST_WORDS, start).decode(errors="replace").strip()
        return f"{how}\n{words}" if words else how

    def _written_bytes(self) -> int:
        assert self._errors is not None
        return os.fstat(self._errors.fileno()).st_size


_DOING: dict[Stage, str] = {"compile": "being compiled", "run": "being run", "inspect": "being looked into"}
# Signals that no program sends to itself.
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_LIMITS: dict[Stage, str] = {"compile": "compile_limit_s", "run": "run_limit_s", "inspect": "compile_limit_s"}


def _started(command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
    """A process that is started by a thread which ends with this process.

    Linux ends the worker (see `worker`) with the thread that has started it, not with the process.
    """
    starter = _starters.get(os.getpid())  # a fork has no threads
    if starter is None:
        starter = _starters[os.getpid()] = ThreadPoolExecutor(1, "starts-workers")
    return starter.submit(lambda: subprocess.Popen[bytes](command, **options)).result()


_starters: dict[int, ThreadPoolExecutor] = {}


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if number == signal.SIGKILL:
        return f"{name}, as somebody else ends a process, or the system when memory is short"
    return name


def _kills_for_memory() -> int | None:
    """How many processes of this machine the system has ended because memory was short; None where nobody counts."""
    with contextlib.suppress(OSError), open("/proc/vmstat") as counters:
        for line in counters:
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    return None


def _environment(setup: Setup) -> dict[str, str]:
    """This process' environment, its way to find modules, and the one platform that is wanted."""
    paths = [path or os.getcwd() for path in sys.path]
    own = {"PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": setup.platform}
    return {**os.environ, **own, **setup.environment}
