"""What one device computes: times of single operations and of parts of models, for a model of devices of its kind.

Takes the first device of this process, whatever it is; gives a JSON file with a row for each program of
`device_programs`: seconds of one execution, what the compiler counts, the memory. Programs are compiled side by side in
groups, and timed one by one while nothing compiles. An execution is enqueued many times and the last one waited for, so
the time of one is the device's, unless it is shorter than what its dispatch takes. Invariants: the file has all that
was measured at any time; a program that fails costs its own row only; a run that is stopped has some of each kind.

    JAX_PLATFORMS=cuda python -m benchmarks.device_rates --output rates.json --limit-s 270

Without JAX_PLATFORMS, JAX takes the CPU where it cannot use the GPU.
"""

import argparse
import json
import math
import random
import re
import statistics
import sys
import time
import zipfile
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from alpa_cfp_bench.machine import describe
from benchmarks import code
from benchmarks.device_programs import Build, DeviceProgram, programs

Row = dict[str, Any]
Named = tuple[str, str, Build]

REPEATS = 5
REPEAT_S, CASE_S = 0.07, 1.2
MOST_EXECUTIONS = 5000
# Below all sizes of vocabularies, sequences and classes, so that any integer can be any of these.
INTEGERS = 1000
LARGEST = 0.1
# Programs that are compiled before they are timed.
_GROUP = 60
_PATIENCE_S = 90.0
_FAILURES = (RuntimeError, ValueError, TypeError, ImportError, AttributeError, MemoryError)
_WORDS = 300
_A_DAY_S = 86400.0
_OPCODE = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = .*? ([a-z][a-z0-9-]*)\(", re.MULTILINE)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for; gives the exit code 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="the JSON file")
    parser.add_argument("--texts", type=Path, help="a ZIP file for the compiled programs of models, as text")
    parser.add_argument("--limit-s", type=float, default=_A_DAY_S, help="nothing is timed after this")
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    parser.add_argument("--only", default="", help="a regular expression that names must match")
    parser.add_argument("--threads", type=int, default=8, help="that compile")
    options = parser.parse_args(argv)
    start = time.monotonic()
    device = jax.local_devices()[0]
    report = {
        "benchmark": "device_rates",
        "commit": code.commit(),
        "device": device.device_kind,
        "platform_version": device.client.platform_version,
        "machine": describe(),
        "quick": options.quick,
        "results": [],
    }
    cases = [each for each in in_turns(programs(quick=options.quick)) if re.search(options.only, each[1])]
    for row, text in measured(cases, options.threads, start + options.limit_s):
        report["results"].append(row)
        options.output.write_text(json.dumps(report, indent=1) + "\n")
        if options.texts is not None and text and row["kind"] == "model":
            with zipfile.ZipFile(options.texts, "a", zipfile.ZIP_DEFLATED) as texts:
                texts.writestr(row["name"].replace(" ", "_") + ".hlo", text)
        print(_line(row), flush=True)
    done = len(report["results"])
    print(f"{done} of {len(cases)} programs in {time.monotonic() - start:.0f} s on {device.device_kind}")
    return 0


def _line(row: Row) -> str:
    told = row.get("error") or f"{row['median_s'] * 1e6:.1f} us, {row['spread']:.1%}, compiled in {row['compile_s']} s"
    return f"{row['name']} | {told}"


def in_turns(kinds: dict[str, dict[str, Build]]) -> list[Named]:
    """All programs with their kind and name; each kind is spread over all of the run, in an order drawn once."""
    placed: list[tuple[float, Named]] = []
    for kind, found in kinds.items():
        names = random.Random(kind).sample(list(found), len(found))
        placed += [((place + 0.5) / len(names), (kind, name, found[name])) for place, name in enumerate(names)]
    return [each for _, each in sorted(placed, key=lambda pair: pair[0])]


def measured(cases: Sequence[Named], threads: int, until_s: float) -> Iterator[tuple[Row, str]]:
    """The row of each program and its compiled text, until the time (`time.monotonic`) is over."""
    pool = ThreadPoolExecutor(threads)
    ahead = deque(cases)
    while ahead and time.monotonic() <= until_s:
        group = [ahead.popleft() for _ in range(min(_GROUP, len(ahead)))]
        compiling = [(each, pool.submit(_compile, each[2])) for each in group]
        # Nothing compiles while something is timed: the compiler tries variants on the device, and takes the cores that
        # dispatch. What has not begun after a while waits for the next group; what has begun is waited for.
        wait([future for _, future in compiling], timeout=min(_PATIENCE_S, max(0.0, until_s - time.monotonic()) / 2))
        ahead.extendleft(reversed([each for each, future in compiling if future.cancel()]))
        begun = [(each, future) for each, future in compiling if not future.cancelled()]
        wait([future for _, future in begun], timeout=max(0.0, until_s - time.monotonic()))
        for (kind, name, _), future in begun:
            if time.monotonic() > until_s:
                pool.shutdown(wait=False, cancel_futures=True)
                return
            yield _row(kind, name, future)
    pool.shutdown()


def _compile(build: Build) -> tuple[DeviceProgram, Any, Any, float]:
    program, start = build(), time.monotonic()
    executable = jax.jit(program.function).lower(*program.arguments).compile()
    return program, executable, jax.jit(lambda: numbers(program.arguments)).lower().compile(), time.monotonic() - start


def numbers(shapes: Any) -> Any:
    """Arrays of these shapes with numbers that look like chance: small floats of both signs, or integers."""
    leaves, structure = jax.tree.flatten(shapes)
    return jax.tree.unflatten(structure, [_numbers(leaf, seed) for seed, leaf in enumerate(leaves)])


def _numbers(shape: jax.ShapeDtypeStruct, seed: int) -> jax.Array:
    mixed = jnp.arange(math.prod(shape.shape), dtype=jnp.uint32) * jnp.uint32(2654435761) + jnp.uint32(seed * 40503)
    mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(2246822519)
    mixed = (mixed ^ (mixed >> 13)).reshape(shape.shape)
    if jnp.issubdtype(shape.dtype, jnp.integer):
        return (mixed % INTEGERS).astype(shape.dtype)
    return ((mixed >> 8).astype(jnp.float32) * (2 * LARGEST / (1 << 24)) - LARGEST).astype(shape.dtype)


def _row(kind: str, name: str, future: Future[Any]) -> tuple[Row, str]:
    row: Row = {"kind": kind, "name": name}
    try:
        program, executable, make, compile_s = future.result()
        row |= {"times": program.times, "compile_s": round(compile_s, 2), **counted(executable)}
        return row | timed(executable, make(), program.times), executable.as_text()
    except _FAILURES as error:
        return row | {"error": f"{type(error).__name__}: {error}"[:_WORDS]}, ""


def counted(executable: Any) -> Row:
    """What the compiler says of a program: operations, bytes, memory, and how many instructions of each kind."""
    costs, memory = executable.cost_analysis() or {}, executable.memory_analysis()
    names = ("argument_size_in_bytes", "output_size_in_bytes", "temp_size_in_bytes", "generated_code_size_in_bytes")
    entry = executable.as_text().partition("\nENTRY ")[2].partition("\n}")[0]
    return {
        "flops": costs.get("flops"),
        "bytes_accessed": costs.get("bytes accessed"),
        "memory": {name: getattr(memory, name, None) for name in names},
        "instructions": dict(Counter(_OPCODE.findall(entry))),
    }


def timed(executable: Any, arguments: tuple[Any, ...], times: int) -> Row:
    """The seconds of one operation of a program that does some: median, least and all of the repeats."""

    def run(executions: int) -> float:
        start = time.perf_counter()
        result = None
        for _ in range(executions):
            del result  # its memory is the next one's
            result = executable(*arguments)
        jax.block_until_ready(result)
        return (time.perf_counter() - start) / executions

    jax.block_until_ready(arguments)
    run(1)
    about_s = min(run(1), run(3))
    executions = max(1, min(MOST_EXECUTIONS, round(REPEAT_S / about_s)))
    repeats = max(2, min(REPEATS, int(CASE_S / (executions * about_s))))
    found = [run(executions) / times for _ in range(repeats)]
    return {
        "median_s": statistics.median(found),
        "min_s": min(found),
        "spread": (max(found) - min(found)) / statistics.median(found),
        "executions": executions,
        "samples_s": found,
    }


if __name__ == "__main__":
    sys.exit(main())
