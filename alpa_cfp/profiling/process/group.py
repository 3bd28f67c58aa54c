"""Do the tasks of measuring: compile a group of programs, several at a time, and time them interleaved.

Takes partitioned modules and the client of their mesh; reports each activity that begins and gives a profile for each
program. The order of runs is drawn anew each round, since the speed of a machine drifts. Invariants: each program is
finished once; one that fails with an error costs that program only; a program stays compiled for the next groups, where
it may get more samples; an activity is reported before it begins, and where several go on at once also when it has
ended, so that a supervisor knows what was going on when the process ended. Uses neither the database nor the other
process.
"""

import gc
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import jax

from alpa_cfp.database import Collective, Failure, Profile, utc_now
from alpa_cfp.profiling.process.compiling import compile_together
from alpa_cfp.profiling.process.protocol import CompileTask, Finished, Started, Task, failed
from alpa_cfp.spmd.compile.executable import Client, MeshExecutable
from alpa_cfp.spmd.module.hlo_module import HloModule

# A reference runs once for so many programs in a group, and so often at least, all samples together.
_RUNS_OF_A_REFERENCE, _LEAST_RUNS = 4, 10
# Programs of other groups that stay compiled, without their arrays.
_KEPT = 64
# Any other error ends the process.
_PROGRAM_ERRORS = (jax.errors.JaxRuntimeError, MemoryError)


@dataclass(slots=True)
class Loaded:
    """A program that is loaded on the devices.

    Attributes:
        executable: The compiled program.
        compile_s: The time that it took to compile.
        run: Runs it once, on arrays that exist since the first run.
        profile: Its first profile: what is not timed stays as it is, and reading a large program takes long.
    """

    executable: MeshExecutable
    compile_s: float
    run: Callable[[], None] | None = None
    profile: Profile | None = None

    def run_once(self) -> None:
        """Run it, and wait for it."""
        if self.run is None:
            self.run = self.executable.runner_with_dummy_inputs()
        self.run()


@dataclass(slots=True, eq=False)
class _TimedProgram:
    index: int
    name: bytes
    program: Loaded
    samples_s: list[float] = field(default_factory=list)


def do_task(
    task: Task,
    client: Client,
    most_threads: int,
    loaded: dict[bytes, Loaded],
    report: Callable[[Started | None, int], None],
) -> Iterator[Finished]:
    """Do a task; gives each finished program.

    Args:
        task: The task.
        client: The backend of the mesh.
        most_threads: The number of programs that are compiled at a time, at most.
        loaded: The programs of earlier tasks that are still loaded, and then those of this one.
        report: Called with what begins, or None when it has ended, and the number of the thread.
    """
    modules = [HloModule.from_serialized(module) for module in task.modules]
    if isinstance(task, CompileTask):
        yield from compile_group(modules, client, task.alone, most_threads, loaded, report)
        return
    for event in measure_group(modules, client, task.samples, task.rng, loaded, task.references):
        if isinstance(event, Started):
            report(event, 0)
        else:
            yield event


def compile_group(
    modules: Sequence[HloModule],
    client: Client,
    alone: Sequence[int],
    most_threads: int,
    loaded: dict[bytes, Loaded],
    report: Callable[[Started | None, int], None],
) -> Iterator[Finished]:
    """Compile those of `modules` that are not loaded; gives the profiles of those that cannot be compiled.

    Args:
        modules: Modules with their partitioned programs.
        client: The backend of their mesh.
        alone: The indexes of those that are compiled while no other one is, after the others.
        most_threads: The number of others that are compiled at a time, at most.
        loaded: The programs of earlier groups that are still loaded, and then those of this group.
        report: Called with what begins, or None when it has ended, and the number of the thread.
    """
    names = _make_room(modules, loaded, _KEPT)
    missing = [index for index, name in enumerate(names) if name not in loaded]

    def load(index: int) -> Loaded | Finished:
        return _load(modules[index], index, client)

    for index, result in compile_together(missing, alone, most_threads, load, report):
        if isinstance(result, Finished):
            yield result
        else:
            loaded[names[index]] = result


def measure_group(
    modules: Sequence[HloModule],
    client: Client,
    samples: int,
    rng: random.Random,
    loaded: dict[bytes, Loaded],
    references: int = 0,
) -> Iterator[Started | Finished]:
    """Measure `modules`, each `samples` times after one run that does not count.

    Nothing is timed while the caller handles an event. The profiles of programs that run come at the end, so that
    inspecting executables disturbs no sample.

    Args:
        modules: Modules with their partitioned programs; those that are not loaded are compiled.
        client: The backend of their mesh.
        samples: The number of times that each is timed.
        rng: Draws the order.
        loaded: The programs of earlier groups that are still loaded, and then those of this group.
        references: The number of programs, the first ones, that run more often, spread over the runs of the others.
    """
    # A program may be measured alone because memory was short.
    names = _make_room(modules, loaded, 0 if len(modules) == 1 else _KEPT)
    running: list[_TimedProgram] = []
    for index, (name, module) in enumerate(zip(names, modules, strict=True)):
        if name not in loaded:
            yield Started(index, "compile")
            result = _load(module, index, client)
            if isinstance(result, Finished):
                yield result
                continue
            loaded[name] = result
        yield Started(index, "run")
        try:
            loaded[name].run_once()
        except _PROGRAM_ERRORS as error:
            loaded.pop(name, None)
            yield _failure(index, error, "crashed")
            continue
        running.append(_TimedProgram(index, name, loaded[name]))
    gc.collect()  # not in the middle of a sample
    repeats = max(-(-len(running) // _RUNS_OF_A_REFERENCE), -(-_LEAST_RUNS // samples))
    for _ in range(samples):
        order = [timed for timed in running for _ in range(repeats if timed.index < references else 1)]
        rng.shuffle(order)
        for timed in order:
            if timed not in running:
                continue
            yield Started(timed.index, "run")
            try:
                if timed.index < references:  # a large program before it must not make it slow
                    timed.program.run_once()
                started = time.perf_counter()
                timed.program.run_once()
                timed.samples_s.append(time.perf_counter() - started)
            except _PROGRAM_ERRORS as error:
                running.remove(timed)
                loaded.pop(timed.name, None)
                yield _failure(timed.index, error, "crashed")
    for timed in sorted(running, key=lambda each: each.index):
        yield Started(timed.index, "inspect")
        samples_s, known = tuple(timed.samples_s), timed.program.profile
        profile = timed.program.profile = (
            _inspected(timed.program, samples_s)
            if known is None
            else replace(known, created_at=utc_now(), samples_s=samples_s)
        )
        yield Finished(timed.index, profile)


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _make_room(modules: Sequence[HloModule], loaded: dict[bytes, Loaded], kept: int) -> list[bytes]:
    """Free the arrays of programs that are not among `modules`, and unload all of these but the latest `kept`.

    Gives the names of `modules`.
    """
    names = [module.as_serialized_hlo_module_proto() for module in modules]
    others = [name for name in loaded if name not in set(names)]
    for name in others:
        loaded[name].run = None
    for name in others[: max(len(others) - kept, 0)]:
        loaded.pop(name).executable.delete()
    return names


def _load(module: HloModule, index: int, client: Client) -> Loaded | Finished:
    started = time.perf_counter()
    try:
        return Loaded(MeshExecutable(client, module), time.perf_counter() - started)
    except _PROGRAM_ERRORS as error:
        return _failure(index, error, "compile_failed")


def _failure(index: int, error: Exception, failure: Failure) -> Finished:
    # The message of a MemoryError is empty.
    message = str(error) if isinstance(error, jax.errors.JaxRuntimeError) else repr(error)
    return Finished(index, failed(message, failure))


def _inspected(program: Loaded, samples_s: tuple[float, ...]) -> Profile:
    """The profile of a program with these samples."""
    executable = program.executable
    sizes, work = executable.memory_bytes(), executable.cost_analysis()
    # Where XLA partitions, the collectives are known only once it has.
    compiled = executable.program.partitioner == "xla"
    collectives = executable.collectives() if compiled else executable.program.collectives
    counts = Counter((each.kind, each.size_bytes, each.group_size) for each in collectives)
    return Profile(
        status="measured",
        created_at=utc_now(),
        samples_s=samples_s,
        compile_s=program.compile_s,
        argument_bytes=sizes["arguments"],
        output_bytes=sizes["outputs"],
        aliased_bytes=sizes["aliased"],
        temporary_bytes=sizes["temporaries"],
        flops=work["flops"],
        bytes_accessed=work["bytes_accessed"],
        collectives=tuple(Collective(*what, count) for what, count in counts.items()),
        collectives_compiled=compiled,
    )
