"""`PlanOptions`: the options of planning."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from alpa_cfp.errors import OptionError
from alpa_cfp.plan.plan import Plan
from alpa_cfp.search import MEMORY_BYTES

Costs = Literal["measure", "compile", "replay", "estimate"]
MeshShapes = Literal["given", "all", "three_axes"]


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of CFP.

    Attributes:
        costs: "measure" runs candidate programs on the mesh, "compile" compiles them for the target of a `TargetMesh`
            and models what they take there, "replay" takes profiles that were recorded on such a mesh (no device of
            that kind is needed), "estimate" counts work and communication.
        memory_budget_bytes: The memory that one device may hold; None without limit, or for alpa's own budget.
        database: The profile database; None for the user's (see `ProfileDatabase.open`).
        samples: The number of times that each candidate is timed. A replay makes the plan that was made of these
            profiles only with the same number.
        refine: The greatest number of plans that are at first compiled whole and timed, beside data parallelism. The
            search is repeated with what they take until no other plan is expected to be enough faster; 0 takes the best
            predicted plan.
        baselines: Whether plans that people write by hand are timed beside them: data parallelism, and ZeRO and
            Megatron-style ones where they are expected to be faster.
        split_sums: Whether sums over devices may stay in parts where weights are split, as in sequence parallelism;
            None: only if no plan fits into the memory otherwise, and not in stages of a pipeline. It needs about half
            as many candidates more. Costs of stages that are composed have none of them.
        pruning_margin: A candidate is measured only if a plan with it would be among the best, were the candidate this
            many times faster than estimated; one that leaves mesh axes unused is there only if so. inf has and measures
            all.
        planning_budget_s: The time after which nothing more is measured: the best plan so far is taken, and a caveat
            says what is not certain of it. Logical mesh shapes that are planned for share it equally; each stage of a
            pipeline has as much. None without limit.
        search_limit_s: The time limit of one search; at the limit the best plan so far is taken, with a warning.
        search_memory_bytes: The memory limit of the tables of one search, on the machine that plans. A search that
            needs more is approximate, and a warning bounds the time by which its plan could be beaten.
        device_kind: The kind of devices whose profiles are replayed, if the database has several.
        seed: The seed of the order in which programs are timed.
        progress: Whether profiling shows a progress bar.
        logical_mesh_shapes: "given" plans for the given logical mesh; "all" also for each shape of its devices with one
            or two axes, "three_axes" with up to three, and takes the fastest plan. Plans along several axes include
            those along products of adjacent ones: those for (2, 2, 2) include those for (2, 4) and (8,), so these are
            not planned for again.
        plan: A plan, or the file of one, that is used as it is; nothing is measured or searched then.
        recompute: Whether the backward pass may compute parts of the forward pass again instead of keeping them, with a
            memory budget: None, where the fastest plan without does not fit, or, on a target without a budget, no plan
            without; True plans with recomputation in any case, and takes the faster plan; False never. For `autoshard`
            only: programs of Alpa stay as they are.
    """

    costs: Costs = "measure"
    memory_budget_bytes: int | None = None
    database: Path | str | None = None
    samples: int = 5
    refine: int = 3
    baselines: bool = True
    split_sums: bool | None = None
    pruning_margin: float = 1.5
    planning_budget_s: float | None = None
    search_limit_s: float = 60.0
    search_memory_bytes: int = MEMORY_BYTES
    device_kind: str | None = None
    seed: int = 0
    progress: bool = True
    logical_mesh_shapes: MeshShapes = "given"
    plan: Plan | Path | str | None = None
    recompute: bool | None = None

    def __post_init__(self) -> None:
        check_choices(self, {"costs": Costs, "logical_mesh_shapes": MeshShapes})
        check_numbers(self)

    def read_plan(self) -> Plan | None:
        """Returns the plan that is used as it is, from its file if need be; None without one.

        Raises:
            PlanError: its file holds no plan.
            OSError: its file cannot be read.
        """
        return self.plan if self.plan is None or isinstance(self.plan, Plan) else Plan.load(self.plan)

    def for_candidate_stage(self) -> "PlanOptions":
        """Returns these options for a candidate stage: closer pruning, no whole plans timed, and a stage that does not
        fit is not planned twice.
        """
        return replace(self.with_closer_pruning(), refine=0, split_sums=bool(self.split_sums))

    def with_closer_pruning(self) -> "PlanOptions":
        """Returns these options with the pruning margin of candidate stages: the square root of this one."""
        return replace(self, pruning_margin=math.sqrt(self.pruning_margin))


class HasPlanOptions(Protocol):
    """An object that has plan options among others, as `CFPOption` does."""

    @property
    def plan_options(self) -> PlanOptions: ...


def check_choices(options: Any, choices_of: Mapping[str, Any]) -> None:
    """Checks fields that must have one of several texts.

    Raises:
        OptionError: a field has another value.
    """
    for name, choices in ((name, get_args(kind)) for name, kind in choices_of.items()):
        if getattr(options, name) not in choices:
            raise OptionError(
                type(options).__name__, name, getattr(options, name), f"it must be one of {', '.join(choices)}"
            )


def check_numbers(options: Any) -> None:
    """Checks the numbers among the fields of `PlanOptions`.

    Raises:
        OptionError: a number is out of its range.
    """
    kind = type(options).__name__
    if not options.pruning_margin >= 1:
        raise OptionError(kind, "pruning_margin", options.pruning_margin, "it must be at least 1")
    for name, least in (("samples", 1), ("refine", 0)):
        value = getattr(options, name)
        if not isinstance(value, int) or value < least:
            raise OptionError.not_whole(kind, name, value, least)
    limit_s = options.planning_budget_s
    if limit_s is not None and not limit_s > 0:
        raise OptionError(kind, "planning_budget_s", limit_s, "it must be above zero, or None")
    if not options.search_memory_bytes > 0:
        raise OptionError(kind, "search_memory_bytes", options.search_memory_bytes, "a search needs some bytes")
    budget = options.memory_budget_bytes
    if budget is not None and budget <= 0:
        raise OptionError(kind, "memory_budget_bytes", budget, "it must be above zero, or None")
