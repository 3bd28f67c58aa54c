"""Do the tasks of profiling for a target: compile a group of programs, several at a time, and model their seconds.

Takes partitioned modules and a function that compiles one for the target; gives a profile for each program, with one
sample, the modelled step. Invariants: each program is finished once; one that cannot be compiled costs that program
only; the same program has the same profile.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator

import jax

from alpa_cfp.database import Collective, Profile, utc_now
from alpa_cfp.errors import CFPError
from alpa_cfp.profiling.process.compiling import Report, compile_together
from alpa_cfp.profiling.process.protocol import CompileTask, Finished, Task, failed
from alpa_cfp.spmd.errors import SpmdError
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.targets.modelled_program import ModelledProgram

# Any other error ends the process. Of CFP there are those of a model that has no seconds for something.
_PROGRAM_ERRORS = (jax.errors.JaxRuntimeError, MemoryError, SpmdError, CFPError)


def do_task(
    task: Task,
    modelled: Callable[[HloModule], ModelledProgram],
    most_threads: int,
    profiles: dict[bytes, Profile],
    report: Report,
) -> Iterator[Finished]:
    """Do a task; gives each finished program.

    Args:
        task: The task.
        modelled: Compiles a program for the target, and reads what was compiled.
        most_threads: The number of programs that are compiled at a time, at most.
        profiles: The profiles of programs of earlier tasks, and then those of this one.
        report: Called with what begins, or None when it has ended, and the number of the thread.
    """
    names, compiles = task.modules, isinstance(task, CompileTask)
    alone = task.alone if isinstance(task, CompileTask) else ()

    def load(index: int) -> Profile:
        return _profile(HloModule.from_serialized(names[index]), modelled)

    missing = [index for index, name in enumerate(names) if name not in profiles]
    for index, profile in compile_together(missing, alone, most_threads, load, report):
        if profile.status == "failed":
            yield Finished(index, profile)
        else:
            profiles[names[index]] = profile
    if not compiles:
        for index, name in enumerate(names):
            if name in profiles:
                yield Finished(index, profiles[name])


def _profile(module: HloModule, modelled: Callable[[HloModule], ModelledProgram]) -> Profile:
    started = time.perf_counter()
    try:
        program = modelled(module)
    except _PROGRAM_ERRORS as error:
        message = str(error) if isinstance(error, jax.errors.JaxRuntimeError | SpmdError | CFPError) else repr(error)
        return failed(message, "compile_failed")
    counts = Counter((each.kind, each.size_bytes, each.group_size) for each in program.collectives)
    return Profile(
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
