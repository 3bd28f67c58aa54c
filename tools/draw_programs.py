"""Runs tests/integration/test_drawn_programs.py on new programs, in batches, each in a process of its own.

    python tools/draw_programs.py --programs 2600 --seed 0

Prints a line for each batch, what pytest says of each that fails, and at the end how many programs ran, by test, mesh,
partitioner, kind of op and dtype. Invariant: a batch that XLA ends, or that outlasts its limit, is a failure like any
other: it names the program that it had begun, and the batches after it run. A batch is repeated by its seed:
`--programs` and `--batch` as its line says. The exit status is 1 where a batch failed.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TESTS = "tests/integration/test_drawn_programs.py"
_BEGUN = re.compile(r"(\w+) on (\w+), seed \d+, of ([\w, ]+):\ndef program\((.*)\):\n(?:    .*\n)+")
_PARTITIONED = re.compile(r"test_drawn_programs.py:\d+ partitioned by (\w+)")
_DTYPE = re.compile(r"'(\w+)\[")


@dataclass(frozen=True, slots=True)
class Begun:
    """A program that a log says was begun."""

    test: str
    mesh: str
    kinds: tuple[str, ...]
    dtypes: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Batch:
    """The result of a batch: its failure (or None), the programs that it began, and their partitioners."""

    failure: str | None
    begun: tuple[Begun, ...]
    partitioners: tuple[str, ...]


def begun_in(log: str) -> tuple[Begun, ...]:
    """The programs of which a log says that they were begun, in order."""
    return tuple(
        Begun(match[1], match[2], tuple(match[3].split(", ")), tuple(_DTYPE.findall(match[4])), match[0])
        for match in _BEGUN.finditer(log)
    )


def run_batch(programs: int, seed: int, limit_s: float, tests: str = TESTS) -> Batch:
    """Draw and run so many programs, of a file of tests, in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        options = ["-q", "-p", "no:cacheprovider", f"--log-file={log}", "--log-file-level=INFO", "--show-capture=no"]
        command = [sys.executable, "-m", "pytest", *options, f"--hypothesis-seed={seed}", tests]
        environment = os.environ | {"HYPOTHESIS_PROFILE": "explore", "ALPA_CFP_PROGRAMS": str(programs)}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
            )
            status, said = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            status, said = None, ""
        written = log.read_text() if log.exists() else ""
    begun = begun_in(written)
    return Batch(_failure(status, said, begun, limit_s), begun, tuple(_PARTITIONED.findall(written)))


def _failure(status: int | None, said: str, begun: Sequence[Begun], limit_s: float) -> str | None:
    if status == 0:
        return None
    if status == 1:
        return said
    how = f"it took more than {limit_s:g} s" if status is None else f"its process ended with status {status}"
    last = begun[-1].text if begun else "no program"
    return f"{how}, in {last}\n{said[-3000:]}"


def counts(batches: Sequence[Batch]) -> dict[str, Counter[str]]:
    """How many programs there were, by what they differ in; one counts once for each of its kinds and dtypes."""
    begun = [program for batch in batches for program in batch.begun]
    return {
        "test": Counter(program.test for program in begun),
        "mesh": Counter(program.mesh for program in begun),
        "partitioner": Counter(name for batch in batches for name in batch.partitioners),
        "number of ops": Counter(str(len(program.kinds)) for program in begun),
        "kind of op": Counter(kind for program in begun for kind in set(program.kinds)),
        "dtype of an argument": Counter(dtype for program in begun for dtype in set(program.dtypes)),
    }


def say(line: str) -> None:
    """Write a line, at once: a batch takes a while."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run the batches; 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", type=int, default=2600, help="in all (%(default)s)")
    parser.add_argument("--batch", type=int, default=260, help="in one process (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first batch; the next ones follow (%(default)s)")
    parser.add_argument("--limit-s", type=float, default=900, help="for one batch, in seconds (%(default)s)")
    given = parser.parse_args()
    batches: list[Batch] = []
    for number, first in enumerate(range(0, given.programs, given.batch)):
        size, seed = min(given.batch, given.programs - first), given.seed + number
        batch = run_batch(size, seed, given.limit_s)
        batches.append(batch)
        result = "right" if batch.failure is None else "FAILED"
        say(f"--programs {size} --batch {size} --seed {seed}: {len(batch.begun)} programs, {result}")
        if batch.failure is not None:
            say(batch.failure)
    for name, counter in counts(batches).items():
        say(f"by {name}: " + ", ".join(f"{key} {count}" for key, count in counter.most_common()))
    return int(any(batch.failure for batch in batches))


if __name__ == "__main__":
    sys.exit(main())
