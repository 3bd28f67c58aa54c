"""What has become of processes: for tests in which some end, or are ended."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path


def has_ended(pid: int) -> bool:
    """Whether there is no such process, or only what its parent has not looked at yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_until(condition: Callable[[], bool], limit_s: float = 30.0) -> float:
    """Wait; gives how many seconds it took.

    Raises:
        AssertionError: it has not come to be so.
    """
    start = time.monotonic()
    while not condition():
        assert time.monotonic() < start + limit_s, f"it has not come to be so within {limit_s} s"
        time.sleep(0.05)
    return time.monotonic() - start


def wait_until_ended(pids: Sequence[int], limit_s: float = 30.0) -> float:
    """Wait until none of these processes is left; gives how many seconds it took."""
    return wait_until(lambda: all(has_ended(pid) for pid in pids), limit_s)


def processes_of(folder: str) -> dict[int, str]:
    """The commands of the processes that have `folder` in their command, environment or output, by their numbers."""
    return {pid: text for pid, text in _commands().items() if pid != os.getpid() and _is_of(folder, pid)}


def _commands() -> dict[int, str]:
    commands = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    commands[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # it has ended
    return commands


def _is_of(folder: str, pid: int) -> bool:
    process = Path("/proc") / str(pid)
    try:
        if folder.encode() in (process / "cmdline").read_bytes() + (process / "environ").read_bytes():
            return True
        # A process of Ray writes over its command and its environment.
        return any(folder in os.readlink(process / "fd" / number) for number in "12")
    except OSError:
        return False
