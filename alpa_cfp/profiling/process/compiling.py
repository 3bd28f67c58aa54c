"""Compile several programs at a time, and say at any time which ones are being compiled.

Takes the numbers of programs and a function that compiles one; gives the result of each as soon as it is there.
Invariant: what begins is reported before it begins, and what has ended afterwards, but not after an error that ends the
process: what was reported last then names the programs that may have caused it.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import TypeVar

from alpa_cfp.profiling.process.protocol import Started

# Each program that is being compiled takes memory.
_MOST_AT_ONCE = 16

Result = TypeVar("Result")
Report = Callable[[Started | None, int], None]


def compile_together(
    missing: Sequence[int],
    alone: Container[int],
    most_threads: int,
    load: Callable[[int], Result],
    report: Report,
) -> Iterator[tuple[int, Result]]:
    """Compile programs; gives the number and the result of each.

    XLA compiles in the calling thread and lets other Python threads run, so a thread for each core keeps all busy.

    Args:
        missing: The numbers of the programs that have to be compiled.
        alone: The numbers of those that are compiled while no other one is, after the others.
        most_threads: The number of others that are compiled at a time, at most.
        load: Compiles one.
        report: Called with what begins, or None when it has ended, and the number of the thread.
    """
    idle = list(range(max(1, min(most_threads, _MOST_AT_ONCE))))

    def compile_one(index: int) -> Result:
        thread = idle.pop()  # there are as many numbers as threads
        report(Started(index, "compile"), thread)
        result = load(index)
        report(None, thread)
        idle.append(thread)
        return result

    with ThreadPoolExecutor(len(idle), "compiles") as threads:
        try:
            together: dict[Future[Result], int] = {
                threads.submit(compile_one, index): index for index in missing if index not in alone
            }
            for future in as_completed(together):
                yield together[future], future.result()
            for index in missing:
                if index in alone:
                    yield index, threads.submit(compile_one, index).result()
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise
