"""Compile a group of programs, several at a time; nothing is run.

Takes partitioned modules and the client of their mesh; gives a failed profile for each that cannot be compiled, and
leaves the others where `group` finds them. XLA compiles in the thread that asks and lets other threads of Python run,
so as many threads as there are cores keep them busy. Invariant: what is being compiled is told before it begins and
when it has ended, so that who watches knows what was under way when the process ended.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

import jax

from alpa_cfp.profiling.process.events import Finished, Started
from alpa_cfp.profiling.process.group import Loaded, failure_of
from alpa_cfp.spmd.compile.executable import Client, MeshExecutable
from alpa_cfp.spmd.module.hlo_module import HloModule

# Each program that is being compiled takes memory.
MOST_AT_ONCE = 16

Tell = Callable[[Started | None, int], None]


def compile_group(
    modules: Sequence[HloModule],
    client: Client,
    alone: Sequence[int],
    at_once: int,
    kept: dict[bytes, Loaded],
    tell: Tell,
) -> Iterator[Finished]:
    """Compile those of `modules` that are not loaded.

    Args:
        modules: Modules with their partitioned programs.
        client: The backend of their mesh.
        alone: The numbers of those that are compiled while no other one is, after the others.
        at_once: How many others are compiled at a time.
        kept: What is still loaded from the group before; becomes what is loaded of this one.
        tell: Called with what begins, or None when it has ended, and the number of the thread.
    """
    names = [module.as_serialized_hlo_module_proto() for module in modules]
    for name in set(kept).difference(names):
        kept.pop(name).executable.delete()
    missing = [index for index, name in enumerate(names) if name not in kept]
    idle = list(range(max(1, min(at_once, MOST_AT_ONCE))))

    def compiled(index: int) -> Loaded | Finished:
        thread = idle.pop()  # there are as many as threads
        tell(Started(index, "compile"), thread)
        started = time.perf_counter()
        try:
            loaded = Loaded(MeshExecutable(client, modules[index]), time.perf_counter() - started)
        except (jax.errors.JaxRuntimeError, MemoryError) as error:
            loaded = Finished(index, failure_of(error, "compile_failed"))
        # Not after any other error: it ends the process, and this is where it was.
        tell(None, thread)
        idle.append(thread)
        return loaded

    with ThreadPoolExecutor(len(idle), "compiles") as threads:
        together: dict[Future[Loaded | Finished], int] = {
            threads.submit(compiled, index): index for index in missing if index not in alone
        }
        try:
            for future in as_completed(together):
                yield from _keep(future.result(), names[together[future]], kept)
            for index in sorted(set(alone).intersection(missing)):
                yield from _keep(threads.submit(compiled, index).result(), names[index], kept)
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def _keep(loaded: Loaded | Finished, name: bytes, kept: dict[bytes, Loaded]) -> Iterator[Finished]:
    if isinstance(loaded, Finished):
        yield loaded
    else:
        kept[name] = loaded


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
