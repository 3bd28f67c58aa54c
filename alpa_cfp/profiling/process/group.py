"""Measure a group of programs together: what is not loaded is compiled, then all are run interleaved.

Takes partitioned modules and the client of their mesh; tells what it begins and gives a profile for each program. The
order is drawn anew each round, since the speed of a machine drifts. Invariants: each program is finished once, and
what fails with an error costs that program only; a program stays loaded for the next group, where it may be measured
more. Knows neither the database nor in which process it is.
"""

import gc
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import jax

from alpa_cfp.database import Collective, Failure, Profile, utc_now
from alpa_cfp.profiling.process.events import Finished, Started, failed
from alpa_cfp.spmd.compile.executable import Client, MeshExecutable
from alpa_cfp.spmd.module.hlo_module import HloModule


@dataclass(slots=True)
class Loaded:
    """A program that is loaded on the devices.

    Attributes:
        executable: What is loaded.
        compile_s: How long it took to compile it.
        run: Runs it once, on arrays that are there since the first run.
    """

    executable: MeshExecutable
    compile_s: float
    run: Callable[[], None] | None = None

    def run_once(self) -> None:
        """Run it, and wait for it."""
        if self.run is None:
            self.run = self.executable.runner_with_dummy_inputs()
        self.run()


@dataclass(slots=True)
class _Runner:
    index: int
    name: bytes
    program: Loaded
    samples_s: list[float] = field(default_factory=list)


def measure_group(
    modules: Sequence[HloModule], client: Client, samples: int, drawn: random.Random, kept: dict[bytes, Loaded]
) -> Iterator[Started | Finished]:
    """Measure `modules`, each `samples` times after one run that does not count.

    Nothing is timed while the caller has an event. The profiles of what can be run come at the end, so that looking
    into executables disturbs no sample.

    Args:
        modules: Modules with their partitioned programs.
        client: The backend of their mesh.
        samples: How often each is timed.
        drawn: Decides the order.
        kept: What is still loaded from the group before; becomes what is loaded after this one.
    """
    names = [module.as_serialized_hlo_module_proto() for module in modules]
    for name in set(kept).difference(names):
        kept.pop(name).executable.delete()
    runners: list[_Runner] = []
    for index, (name, module) in enumerate(zip(names, modules, strict=True)):
        if name not in kept:
            yield Started(index, "compile")
            started = time.perf_counter()
            try:
                kept[name] = Loaded(MeshExecutable(client, module), time.perf_counter() - started)
            except (jax.errors.JaxRuntimeError, MemoryError) as error:
                yield Finished(index, failure_of(error, "compile_failed"))
                continue
        yield Started(index, "run")
        try:
            kept[name].run_once()
        except (jax.errors.JaxRuntimeError, MemoryError) as error:
            kept.pop(name, None)
            yield Finished(index, failure_of(error, "crashed"))
            continue
        runners.append(_Runner(index, name, kept[name]))
    gc.collect()  # not in the middle of a sample
    for _ in range(samples):
        drawn.shuffle(runners)
        for runner in list(runners):
            yield Started(runner.index, "run")
            try:
                started = time.perf_counter()
                runner.program.run_once()
                runner.samples_s.append(time.perf_counter() - started)
            except (jax.errors.JaxRuntimeError, MemoryError) as error:
                runners.remove(runner)
                kept.pop(runner.name, None)
                yield Finished(runner.index, failure_of(error, "crashed"))
    for runner in sorted(runners, key=lambda each: each.index):
        yield Started(runner.index, "inspect")
        yield Finished(runner.index, _profile(runner))


def failure_of(error: Exception, failure: Failure) -> Profile:
    """The profile of a program at which there was this error."""
    # Python's own says nothing but its name.
    return failed(str(error) if isinstance(error, jax.errors.JaxRuntimeError) else repr(error), failure)


def _profile(runner: _Runner) -> Profile:
    executable = runner.program.executable
    sizes, work = executable.memory_bytes(), executable.cost_analysis()
    # What XLA partitions is known only once it has.
    compiled = executable.program.partitioner == "xla"
    collectives = executable.collectives() if compiled else executable.program.collectives
    counts = Counter((each.kind, each.size_bytes, each.group_size) for each in collectives)
    return Profile(
        status="measured",
        created_at=utc_now(),
        samples_s=tuple(runner.samples_s),
        compile_s=runner.program.compile_s,
        argument_bytes=sizes["arguments"],
        output_bytes=sizes["outputs"],
        aliased_bytes=sizes["aliased"],
        temporary_bytes=sizes["temporaries"],
        flops=work["flops"],
        bytes_accessed=work["bytes_accessed"],
        collectives=tuple(Collective(*what, count) for what, count in counts.items()),
        collectives_compiled=compiled,
    )
