"""How a planner takes the place of Alpa's ILP: by the type of the option that a method carries.

`alpa.shard_parallel.auto_sharding.run_auto_sharding_pass` is told an `AutoShardingOption`. One that is a `Planner` too
is asked, in the auto-sharding pass, to annotate the module; any other is an option of the ILP. The option travels
through alpa to wherever a stage is compiled, so nothing else has to know of the planner. Invariant: a planner is asked
only by the pass that was called with it, in the same thread.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from alpa_on_jax.xla_extension.hlo_module import HloModule


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a planner is to plan for.

    Attributes:
        logical_mesh: Alpa's `LogicalDeviceMesh`: shape, alpha and beta, and the physical mesh; its devices may be fake.
        num_micro_batches: How many there are in a step; 1 without gradient accumulation.
        gradients: The results of a pipeline stage that are gradients to be accumulated. A whole step with gradient
            accumulation has none: it comes with markers around what is run for each micro-batch (see `stages`).
        memory_budget_bytes: What one device has for the program; None without limit.
    """

    logical_mesh: Any
    num_micro_batches: int
    gradients: tuple[int, ...]
    memory_budget_bytes: int | None


@runtime_checkable
class Planner(Protocol):
    """An `AutoShardingOption` that plans by itself."""

    def annotate_module(self, module: HloModule, request: PlanRequest) -> None:
        """Give `module` its mesh and the shardings of its inputs, outputs and ops, in place.

        What alpa has set on the module's inputs and outputs before (manual shardings) stays.
        """
        ...


_current = threading.local()


@contextlib.contextmanager
def asked(option: Any, request: PlanRequest) -> Iterator[None]:
    """For the time of the context, `option` plans if it is a planner."""
    before = current()
    _current.value = (option, request) if isinstance(option, Planner) else None
    try:
        yield
    finally:
        _current.value = before


def current() -> tuple[Planner, PlanRequest] | None:
    """The planner that is to be asked, and for what; None where the ILP decides."""
    return getattr(_current, "value", None)


def request(
    logical_mesh: Any, num_micro_batches: int | None, gradients: Sequence[int] | None, memory_budget_bytes: float | None
) -> PlanRequest:
    """A request in alpa's words, where a budget of -1 is none."""
    limited = memory_budget_bytes is not None and memory_budget_bytes > 0
    return PlanRequest(
        logical_mesh,
        num_micro_batches or 1,
        tuple(int(index) for index in gradients or ()),
        int(memory_budget_bytes) if limited and memory_budget_bytes is not None else None,
    )
