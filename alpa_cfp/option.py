"""`CFPOption`: that CFP plans, and how."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from alpa import AutoShardingOption

from alpa_cfp.errors import NothingRunsError, OptionError
from alpa_cfp.plan import Plan
from alpa_cfp.search import MEMORY_BYTES, NoPlanError, NothingFitsError
from alpa_on_jax.errors import StagePlanError
from alpa_on_jax.xla_extension.hlo_module import HloModule
from alpa_on_jax.xla_extension.planner import PlannedStage, PlanRequest

if TYPE_CHECKING:
    from alpa_cfp.composing import Learnt
    from alpa_cfp.session import Session

Costs = Literal["measure", "replay", "estimate"]
MeshShapes = Literal["given", "all"]
StageCosts = Literal["profile", "compose"]


@dataclass
class CFPOption(AutoShardingOption):
    """Options of CFP, in the place of those of Alpa's ILP, whose fields say nothing to CFP.

    Attributes:
        costs: "measure" runs candidate programs on the mesh, "replay" takes profiles that were recorded on such a mesh
            (no device of that kind is needed), "estimate" counts work and communication.
        memory_budget_bytes: What one device may hold; None without limit, or where alpa's own budget counts.
        database: The profile database; None for the user's (see `ProfileDatabase.open`).
        samples: How often each candidate is timed.
        refine: How many of the best plans are compiled whole and timed beside the plain ones (data parallel, ZeRO,
            Megatron-style); 0 takes the best predicted one. Of a pipeline whose stages alpa chooses, this is done for
            those that it has chosen, where `stage_costs` is "profile".
        pruning_margin: A candidate is measured only if a plan with it would be among the best when it was so many times
            faster than estimated; inf measures all. For candidate stages of a pipeline, which are many, the square root
            of it counts.
        search_limit_s: How long one search may take; at the limit the best plan so far is taken, with a warning.
        search_memory_bytes: How much memory the tables of one search may take, where it is planned. What needs more is
            not searched exactly: the plan is good then, and a warning says by how much at most it could be beaten.
        device_kind: Of which devices profiles are replayed, where the database has them of several.
        seed: Of the order in which programs are timed.
        progress: Whether profiling shows a progress bar.
        logical_mesh_shapes: "given" plans for the logical mesh that it is given; "all" for each shape that its devices
            can have in one or two axes, and takes the fastest plan.
        stage_costs: What a candidate stage of a pipeline costs: "profile" lets alpa compile it and time it, "compose"
            puts it together from profiles of its segments; no stage is compiled to choose stages then.
        plan: A plan, or the file of one, that is used as it is; nothing is measured or searched then.
        plans: The plans that were made or used with this option in this process, the newest last.
        stage_plans: Of candidate stages of the last pipeline, by digests of programs and meshes, each with what it
            was learnt from where costs were composed. A stage that is chosen keeps the plan that it was chosen by, if
            that is not refined.
        session: What plans are made with; None for one of each plan's own.
    """

    costs: Costs = "measure"
    memory_budget_bytes: int | None = None
    database: Path | str | None = None
    samples: int = 5
    refine: int = 3
    pruning_margin: float = 1.5
    search_limit_s: float = 60.0
    search_memory_bytes: int = MEMORY_BYTES
    device_kind: str | None = None
    seed: int = 0
    progress: bool = True
    logical_mesh_shapes: MeshShapes = "given"
    stage_costs: StageCosts = "profile"
    plan: Plan | Path | str | None = None
    plans: list[Plan] = field(default_factory=list, compare=False, repr=False)
    stage_plans: dict[tuple[str, tuple[int, ...]], tuple[Plan, "Learnt | None"]] = field(
        default_factory=dict, compare=False, repr=False
    )
    session: "Session | None" = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        choices_of = {"costs": Costs, "logical_mesh_shapes": MeshShapes, "stage_costs": StageCosts}
        for name, choices in ((name, get_args(kind)) for name, kind in choices_of.items()):
            if getattr(self, name) not in choices:
                raise OptionError(name, getattr(self, name), f"it must be one of {', '.join(choices)}")
        if not self.pruning_margin >= 1:
            raise OptionError("pruning_margin", self.pruning_margin, "it must be at least 1")
        for name, least in (("samples", 1), ("refine", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise OptionError(name, value, f"it must be a whole number of at least {least}")
        if not self.search_memory_bytes > 0:
            raise OptionError("search_memory_bytes", self.search_memory_bytes, "a search needs some bytes")
        if self.memory_budget_bytes is not None and self.memory_budget_bytes <= 0:
            raise OptionError("memory_budget_bytes", self.memory_budget_bytes, "it must be above zero, or None")

    def __getstate__(self) -> dict[str, Any]:
        """What goes to other processes: without what was made in this one."""
        return {**self.__dict__, "plans": [], "stage_plans": {}, "session": None}

    def annotate_module(self, module: HloModule, request: PlanRequest) -> None:
        """Plan `module` and write the plan into it: what alpa's auto-sharding pass asks for (see `Planner`).

        A candidate stage whose costs are composed stays as it is (see `planned_stage`).

        Raises:
            StagePlanError: it is one of the stages that a pipeline might have, and has no plan.
        """
        # Not at the top: alpa pickles options, and workers need no planner.
        from alpa_cfp.planner import lengths_of, plan_module

        try:
            plan = plan_module(module, request, self, self.session)
        except (NoPlanError, NothingFitsError, NothingRunsError) as error:
            if self.session is None:
                raise
            raise StagePlanError(str(error)) from error
        self.plans.append(plan)
        if self.session is not None:
            composed = self.session.composed.get(plan.mesh_shape)
            learnt = None if composed is None else composed.learnt
            self.stage_plans[plan.program, lengths_of(request.logical_mesh.shape)] = plan, learnt

    @property
    def composes(self) -> bool:
        """Whether it says what candidate stages cost (see `StagePlanner`)."""
        return self.stage_costs == "compose"

    @contextlib.contextmanager
    def planning_stages(self, known: dict[str, Any]) -> Iterator["CFPOption"]:
        """This option for candidate stages, whose plans share a session; see `StagePlanner`."""
        from alpa_cfp.program import Programs  # not at the top: see above
        from alpa_cfp.session import Session

        if not known:  # the first shape of another pipeline
            self.stage_plans.clear()
        with Session(self, self.stage_costs, known.setdefault("programs", Programs())) as session:
            yield replace(self.closer(), refine=0, session=session)

    def closer(self) -> "CFPOption":
        """This option with the pruning margin of candidate stages."""
        return replace(self, pruning_margin=math.sqrt(self.pruning_margin))

    @property
    def refines_stages(self) -> bool:
        """Whether the best plans of a chosen stage are timed whole: where its profiles are there, and time is."""
        return self.refine > 0 and self.costs == "measure" and self.stage_costs == "profile"

    def same_for(self, logical_mesh: Any, fields: dict[str, Any]) -> tuple[int, ...]:
        """See `StagePlanning`: alpa's fields say something to the ILP only."""
        from alpa_cfp.planner import lengths_of  # not at the top: see above

        del fields
        return lengths_of(logical_mesh.shape)

    def covers(self, logical_mesh: Any, other: Any) -> bool:
        """See `StagePlanning`: a finer mesh has the shardings of a coarser one, too, which split along several axes.

        Where alpa times the plans, it is to have both.
        """
        from alpa_cfp.planner import is_finer  # not at the top: see above

        return self.composes and is_finer(logical_mesh.shape, other.shape)

    def planned_stage(self, phases: int) -> PlannedStage:
        """See `StagePlanning`."""
        assert self.session is not None
        if self.session.stages == "compose":
            composed = self.session.composed[self.plans[-1].mesh_shape]
            return PlannedStage({}, composed.costs(phases), composed.device_bytes, composed.ends)
        # Without why: it is for alpa's compile workers.
        return PlannedStage({"plan": replace(self.plans[-1], account=None)})
