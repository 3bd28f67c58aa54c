"""How a planner takes the place of Alpa's ILP: by the type of the option that a method carries.

`alpa.shard_parallel.auto_sharding.run_auto_sharding_pass` is told an `AutoShardingOption`. One that is a `Planner` too
is asked, in the auto-sharding pass, to annotate the module; any other is an option of the ILP. The option travels
through alpa to wherever a stage is compiled, so nothing else has to know of the planner. Invariant: a planner is asked
only by the pass that was called with it, in the same thread.
"""

import contextlib
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.module.stage_programs import NO_LIMIT_BYTES, BoundaryShardings, PhaseCost


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


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """What a planner says of a candidate stage of a pipeline.

    Attributes:
        fields: The fields of the option that are others where this stage is compiled again.
        costs: Of each program that is run for a micro-batch (forward and backward, or forward alone); None where alpa
            is to compile the stage and time it.
        available_bytes: What a device has, where `costs` are given.
        ends: Of each of the stage's programs, by name, where `costs` are given; the module may be as it was then.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    costs: tuple[PhaseCost, ...] | None = None
    available_bytes: int = NO_LIMIT_BYTES
    ends: Mapping[str, BoundaryShardings] = field(default_factory=dict)


class StagePlanning(Planner, Protocol):
    """An option with which candidate stages are planned one after the other."""

    def plan_key(self, logical_mesh: Any, fields: dict[str, Any]) -> Hashable:
        """What is equal for candidates that get the same plan if their programs are the same, and so cost the same.

        Args:
            logical_mesh: Alpa's `LogicalDeviceMesh`, of the submesh that all candidates are for.
            fields: Those of the option that are others for the candidate.
        """
        ...

    def dominates(self, logical_mesh: Any, other: Any) -> bool:
        """Whether what is planned on a logical mesh is at least as good as what would be on another one of the same
        devices, which is not the same: then candidates on that one are left out.
        """
        ...

    def planned_stage(self, phases: int) -> PlannedStage:
        """What there is to say of the stage that was annotated last, which has so many programs for a micro-batch."""
        ...


@runtime_checkable
class StagePlanner(Planner, Protocol):
    """A planner of all the stages that a pipeline might have.

    Its plans are made in the driver, before any stage is compiled; `annotate_module` raises `errors.StagePlanError`
    where a stage has none.

    Attributes:
        composes: Whether it says what stages cost, so that alpa need not time them.
    """

    @property
    def composes(self) -> bool: ...

    def planning_stages(self, known: dict[str, Any]) -> AbstractContextManager[StagePlanning]:
        """An option like this one, for stages on one shape of submesh. After the context no device is held for it.

        Args:
            known: What it has found out about the same stages for submeshes of other shapes; empty at first.
        """
        ...


_current = threading.local()


@contextlib.contextmanager
def active_planner(option: Any, request: PlanRequest) -> Iterator[None]:
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
