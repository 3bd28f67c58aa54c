"""Measure a group of programs together: compiled one after the other, then run interleaved.

Takes partitioned modules and the client of their mesh; tells what it begins and gives a profile for each program. The
order is drawn anew each round, since the speed of a machine drifts. Invariants: each program is finished once, and
what fails with an error costs that program only. Knows neither the database nor in which process it is.
"""

import gc
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import jax

from alpa_cfp.database import Collective, Failure, Profile, utc_now
from alpa_on_jax.xla_extension.executable import Client, MeshExecutable
from alpa_on_jax.xla_extension.hlo_module import HloModule

Stage = Literal["compile", "run", "inspect"]

# How XLA, Python and C++ word it.
_OUT_OF_MEMORY = ("resource_exhausted", "out of memory", "bad_alloc", "memoryerror")


@dataclass(frozen=True, slots=True)
class Started:
    """From now on the program with this number is compiled, or run once, or its executable is looked into."""

    index: int
    stage: Stage


@dataclass(frozen=True, slots=True)
class Finished:
    """The program with this number has its profile."""

    index: int
    profile: Profile


@dataclass(slots=True)
class _Loaded:
    index: int
    executable: MeshExecutable
    run: Callable[[], None]
    compile_s: float
    samples_s: list[float] = field(default_factory=list)


def measure_group(
    modules: Sequence[HloModule], client: Client, samples: int, drawn: random.Random
) -> Iterator[Started | Finished]:
    """Measure `modules`, each `samples` times after one run that does not count.

    Nothing is timed while the caller has an event. The profiles of what can be run come at the end, so that looking
    into executables disturbs no sample.
    """
    loaded: list[_Loaded] = []
    for index, module in enumerate(modules):
        yield Started(index, "compile")
        started = time.perf_counter()
        try:
            executable = MeshExecutable(client, module)
        except (jax.errors.JaxRuntimeError, MemoryError) as error:
            yield Finished(index, _failed(error, "compile_failed"))
            continue
        compile_s = time.perf_counter() - started
        yield Started(index, "run")
        try:
            run = executable.runner_with_dummy_inputs()
            run()
        except (jax.errors.JaxRuntimeError, MemoryError) as error:
            yield Finished(index, _failed(error, "crashed"))
            continue
        loaded.append(_Loaded(index, executable, run, compile_s))
    gc.collect()  # not in the middle of a sample
    for _ in range(samples):
        drawn.shuffle(loaded)
        for program in list(loaded):
            yield Started(program.index, "run")
            try:
                started = time.perf_counter()
                program.run()
                program.samples_s.append(time.perf_counter() - started)
            except (jax.errors.JaxRuntimeError, MemoryError) as error:
                loaded.remove(program)
                yield Finished(program.index, _failed(error, "crashed"))
    for program in sorted(loaded, key=lambda each: each.index):
        yield Started(program.index, "inspect")
        profile = _profile(program)
        program.executable.delete()
        yield Finished(program.index, profile)


def failed(message: str, failure: Failure) -> Profile:
    """The profile of a program that failed; running out of memory is told by the message."""
    if any(words in message.lower() for words in _OUT_OF_MEMORY):
        failure = "out_of_memory"
    return Profile(status="failed", created_at=utc_now(), failure=failure, failure_message=message)


def _failed(error: Exception, failure: Failure) -> Profile:
    # Python's own says nothing but its name.
    return failed(str(error) if isinstance(error, jax.errors.JaxRuntimeError) else repr(error), failure)


def _profile(program: _Loaded) -> Profile:
    sizes, work = program.executable.memory_bytes(), program.executable.cost_analysis()
    counts = Counter((each.kind, each.size_bytes, each.group_size) for each in program.executable.program.collectives)
    return Profile(
        status="measured",
        created_at=utc_now(),
        samples_s=tuple(program.samples_s),
        compile_s=program.compile_s,
        argument_bytes=sizes["arguments"],
        output_bytes=sizes["outputs"],
        aliased_bytes=sizes["aliased"],
        temporary_bytes=sizes["temporaries"],
        flops=work["flops"],
        bytes_accessed=work["bytes_accessed"],
        collectives=tuple(Collective(*what, count) for what, count in counts.items()),
    )
