"""Starts a program in several processes that find each other by `jax.distributed`, on the loopback of this machine.

Takes the program's file and its arguments; gives the end of each process. Invariant: no process is left, however it
ends.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 270.0


@dataclass(frozen=True)
class Ended:
    """The end of a process.

    Attributes:
        code: Its exit code; negative for a signal.
        output: What it wrote to stdout and stderr.
    """

    code: int
    output: str


def run_processes(
    program: Path, folder: Path, count: int, devices: int, *arguments: str, limit_s: float = LIMIT_S
) -> list[Ended]:
    """Runs `program RANK COUNT PORT FOLDER *arguments` in `count` processes with `devices` virtual CPU devices each.

    Raises:
        AssertionError: one of them is not over after `limit_s`; its output is in the message.
    """
    port = free_port()
    commands = [[str(program), str(rank), str(count), str(port), str(folder), *arguments] for rank in range(count)]
    return run_commands(commands, folder, devices, [{}] * count, limit_s)


def free_port(ports: Sequence[int] = (0,)) -> int:
    """A port of the loopback that nobody listens at, of `ports`; 0 stands for any."""
    for port in ports:
        with contextlib.suppress(OSError), socket.socket() as free:
            free.bind(("127.0.0.1", port))
            return free.getsockname()[1]
    raise AssertionError("no port is free")


def run_commands(
    commands: Sequence[Sequence[str]],
    folder: Path,
    devices: int,
    environments: Sequence[Mapping[str, str]],
    limit_s: float = LIMIT_S,
) -> list[Ended]:
    """Runs Python with each of the commands at the same time; see `run_processes`."""
    outputs = [folder / f"output-{number}.txt" for number in range(len(commands))]
    started = [
        _start(command, devices, output, environment)
        for command, output, environment in zip(commands, outputs, environments, strict=True)
    ]
    try:
        end = time.monotonic() + limit_s
        for process in started:
            process.wait(timeout=max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise AssertionError("\n".join(output.read_text() for output in outputs)) from None
    finally:
        for process in started:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
    return [Ended(process.returncode, output.read_text()) for process, output in zip(started, outputs, strict=True)]


def _start(
    command: Sequence[str], devices: int, output: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    kept = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in flag]
    flags = " ".join([*kept, f"--xla_force_host_platform_device_count={devices}"])
    paths = [path or os.getcwd() for path in sys.path]
    own = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(paths)}
    with output.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, **own, **environment}, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
        )  # fmt: skip
