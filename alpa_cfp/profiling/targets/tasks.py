"""Do the tasks of profiling for a target: compile a group of programs, several at a time, and model their seconds.

Takes partitioned modules and a function that compiles one for the target; gives a profile for each program, with one
sample, the modelled step, and its timeline. Invariants: each program is finished once; one that cannot be compiled
costs that program only; the same program has the same profile.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax

from alpa_cfp.database import Collective, Profile, StepTimeline, utc_now
from alpa_cfp.errors import CFPError
from alpa_cfp.profiling.process.compiling import Report, compile_together
from alpa_cfp.profiling.process.protocol import CompileTask, Finished, Task, failed
from alpa_cfp.profiling.targets.compaction import compact
from alpa_cfp.spmd.errors import SpmdError
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.targets.modelled_program import ModelledProgram

# Any other error ends the process. Of CFP there are those of a model that has no seconds for something.
_PROGRAM_ERRORS = (jax.errors.JaxRuntimeError, MemoryError, SpmdError, CFPError)


@dataclass(frozen=True, slots=True)
class Compiled:
    """What is known of a program.

    Attributes:
        profile: Its profile.
        timeline: Its timeline; None if it cannot be compiled.
    """

    profile: Profile
    timeline: StepTimeline | None = None


def do_task(
    task: Task,
    modelled: Callable[[HloModule], ModelledProgram],
    most_threads: int,
    known: dict[bytes, Compiled],
    report: Report,
) -> Iterator[Finished]:
    """Do a task; gives each finished program.

    Args:
        task: The task.
        modelled: Compiles a program for the target, and reads what was compiled.
        most_threads: The number of programs that are compiled at a time, at most.
        known: The programs of earlier tasks that were compiled, and then those of this one, too.
        report: Called with what begins, or None when it has ended, and the number of the thread.
    """
    names, compiles = task.modules, isinstance(task, CompileTask)
    alone = task.alone if isinstance(task, CompileTask) else ()

    def load(index: int) -> Compiled:
        return _compiled(HloModule.from_serialized(names[index]), modelled)

    missing = [index for index, name in enumerate(names) if name not in known]
    for index, compiled in compile_together(missing, alone, most_threads, load, report):
        if compiled.profile.status == "failed":
            yield Finished(index, compiled.profile)
        else:
            known[names[index]] = compiled
    if not compiles:
        for index, name in enumerate(names):
            if name in known:
                yield Finished(index, known[name].profile, timeline=known[name].timeline)


def _compiled(module: HloModule, modelled: Callable[[HloModule], ModelledProgram]) -> Compiled:
    started = time.perf_counter()
    try:
        program = modelled(module)
    except _PROGRAM_ERRORS as error:
        message = str(error) if isinstance(error, jax.errors.JaxRuntimeError | SpmdError | CFPError) else repr(error)
        return Compiled(failed(message, "compile_failed"))
    counts = Counter((each.kind, each.size_bytes, each.group_size) for each in program.collectives)
    profile = Profile(
        status="measured",
        created_at=utc_now(),
        samples_s=(program.step_s,),
        compile_s=time.perf_counter() - started,
        argument_bytes=program.argument_bytes,
        output_bytes=program.output_bytes,
        aliased_bytes=program.aliased_bytes,
        temporary_bytes=program.temporary_bytes,
        collectives=tuple(Collective(*what, count) for what, count in counts.items()),
        collectives_compiled=program.is_read,
    )
    return Compiled(profile, compact(program.timeline))
