"""`MeasureOptions`: how programs are measured, and where."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """Options of measuring.

    Attributes:
        samples: The number of times that each program is timed, after one run that does not count.
        group: The number of programs that are loaded at once and run interleaved.
        seed: Of the order of runs.
        progress: Whether to show a progress bar.
        isolated: Whether programs run in a worker process, so that one that hangs or crashes costs itself only. None:
            on CPUs; not on devices whose memory belongs to one process (GPUs, TPUs), where there are no time limits
            either.
        compile_limit_s: The time limit of compiling a program in a worker process.
        run_limit_s: The time limit of one run there.
        slots: The number of equal meshes of a Ray cluster on which programs are measured at once, at most.
    """

    samples: int = 7
    group: int = 8
    seed: int = 0
    progress: bool = True
    isolated: bool | None = None
    compile_limit_s: float = 300.0
    run_limit_s: float = 60.0
    slots: int = 8
