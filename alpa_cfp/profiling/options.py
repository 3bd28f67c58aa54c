"""`MeasureOptions`: how programs are measured, and where."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """How to measure.

    Attributes:
        samples: How often each program is timed, after one run that is not.
        group: How many programs are loaded at once and run interleaved.
        seed: Of the order.
        progress: Whether to show a progress bar.
        isolated: Whether programs run in a process of their own, so that one that hangs or crashes costs itself only.
            None: on CPUs; not on devices whose memory belongs to one process (GPUs, TPUs), where there are no limits
            of time either.
        compile_limit_s: How long a program may take to compile in a process of its own.
        run_limit_s: How long one run may take there.
        slots: On how many equal meshes of a Ray cluster programs are measured at once, at most.
    """

    samples: int = 7
    group: int = 8
    seed: int = 0
    progress: bool = True
    isolated: bool | None = None
    compile_limit_s: float = 300.0
    run_limit_s: float = 60.0
    slots: int = 8
