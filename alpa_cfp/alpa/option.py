"""`CFPOption`: that CFP plans, and how, as Alpa's methods carry it."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from alpa import AutoShardingOption
from alpa.shard_parallel import auto_sharding

from alpa_cfp.errors import NoRunnablePlanError
from alpa_cfp.plan.plan import Plan
from alpa_cfp.planner.mesh_shapes import nontrivial_sizes, refines
from alpa_cfp.planner.options import Costs, MeshShapes, PlanOptions, check_choices, check_numbers
from alpa_cfp.search import MEMORY_BYTES, MemoryBudgetError, NoPlanError
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_on_jax.errors import StagePlanError
from alpa_on_jax.xla_extension import planner as seam

if TYPE_CHECKING:
    from alpa_cfp.extraction.analysed_program import AnalysedProgram
    from alpa_cfp.planner.request import PlanRequest
    from alpa_cfp.stages.planning import ComposedStage
    from alpa_cfp.stages.session import StageSession
    from alpa_cfp.stages.stage_costs import StageEvidence

StageCosts = Literal["profile", "compose"]


@dataclass
class _StagePlanning:
    """What candidate stages are planned with, and what was found for the last one."""

    session: "StageSession"
    composed: "ComposedStage | None" = None
    plan: Plan | None = None


@dataclass
class CFPOption(AutoShardingOption):
    """Options of CFP, in the place of those of Alpa's ILP, whose fields say nothing to CFP.

    The fields from `costs` to `plan` are those of `PlanOptions`. Of a pipeline whose stages alpa chooses, `refine` is
    for those that it has chosen, where `stage_costs` is "profile"; candidates have the square root of `pruning_margin`.

    Attributes:
        stage_costs: What a candidate stage of a pipeline costs: "profile" lets alpa compile it and time it, "compose"
            puts it together from profiles of its segments; no stage is compiled to choose stages then.
        plans: The plans that were made or used with this option in this process, the newest last.
        stage_plans: Of candidate stages of the last pipeline, by digests of programs and meshes, each with what it
            was learnt from where costs were composed. A stage that is chosen keeps the plan that it was chosen by, if
            that is not refined.
        stage: What candidate stages are planned with, while they are.
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
    stage_plans: dict[tuple[str, tuple[int, ...]], tuple[Plan, "StageEvidence | None"]] = field(
        default_factory=dict, compare=False, repr=False
    )
    stage: "_StagePlanning | None" = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_choices(self, {"costs": Costs, "logical_mesh_shapes": MeshShapes, "stage_costs": StageCosts})
        check_numbers(self)

    def __getstate__(self) -> dict[str, Any]:
        """What goes to other processes: without what was made in this one."""
        return {**self.__dict__, "plans": [], "stage_plans": {}, "stage": None}

    @property
    def plan_options(self) -> PlanOptions:
        """The same as planning takes it."""
        return PlanOptions(**{each.name: getattr(self, each.name) for each in dataclasses.fields(PlanOptions)})

    def annotate_module(self, module: HloModule, request: seam.PlanRequest) -> None:
        """Plan `module` and write the plan into it: what alpa's auto-sharding pass asks for (see `Planner`). The
        predicted seconds of a step are alpa's objective.

        A candidate stage whose costs are composed stays as it is (see `planned_stage`).

        Raises:
            StagePlanError: it is one of the stages that a pipeline might have, and has no plan.
        """
        asked = _request(request)
        try:
            plan = (
                self._planned(module, asked) if self.stage is None else self._planned_stage(module, asked, self.stage)
            )
        except (NoPlanError, MemoryBudgetError, NoRunnablePlanError) as error:
            if self.stage is None:
                raise
            raise StagePlanError(str(error)) from error
        # Where alpa's ILP leaves its objective: the executable has it from there.
        auto_sharding.last_objective = plan.predicted_s
        self.plans.append(plan)

    def _planned(self, module: HloModule, request: "PlanRequest") -> Plan:
        """Plan a whole step, or a stage that is a part of the pipeline."""
        # Not at the top: alpa pickles options, and workers need no planner.
        from alpa_cfp.extraction.analysed_program import AnalysedProgram
        from alpa_cfp.planner.planner import plan_whole

        options, learnt, program = self.plan_options, None, AnalysedProgram(module)
        if self.plan is None and self.stage_plans:
            chosen, learnt = self.stage_plans.get((program.digest, nontrivial_sizes(request.mesh.shape)), (None, None))
            if chosen is not None and self.refines_stages and request.mesh.num_devices > 1:
                # Its candidates are measured. What has not been done for all candidate stages is done for this one.
                options, learnt = options.with_closer_pruning(), None
            elif chosen is not None:
                options = replace(options, plan=chosen)
        made = plan_whole(program, request, options)
        module.become(made.module)
        return made.plan if learnt is None else self._explained(program, made.plan, learnt, request)

    def _explained(
        self, program: "AnalysedProgram", plan: Plan, learnt: "StageEvidence", request: "PlanRequest"
    ) -> Plan:
        from alpa_cfp.stages.planning import explain_stage

        return explain_stage(program, plan, learnt, request, self.plan_options)

    def _planned_stage(self, module: HloModule, request: "PlanRequest", stage: _StagePlanning) -> Plan:
        """Plan a candidate stage."""
        from alpa_cfp.planner.planner import plan_program, use_plan
        from alpa_cfp.stages.planning import compose_stage

        session = stage.session
        program = session.programs.of(module)
        stage.composed = None
        if self.composes and self.plan is None:
            # As it is: alpa is told what it costs, and where its stages' arguments and results are.
            stage.composed = compose_stage(program, request, session)
            plan, learnt = stage.composed.plan, stage.composed.composed.evidence
        else:
            if self.plan is None:
                made = plan_program(program, request, session, needs_profiles=False)
            else:
                made = use_plan(program, request, self.plan_options)
            module.become(made.module)
            plan, learnt = made.plan, None
        stage.plan = plan
        self.stage_plans[plan.program, nontrivial_sizes(request.mesh.shape)] = plan, learnt
        return plan

    @property
    def composes(self) -> bool:
        """Whether it says what candidate stages cost (see `StagePlanner`)."""
        return self.stage_costs == "compose"

    @contextlib.contextmanager
    def planning_stages(self, known: dict[str, Any]) -> Iterator["CFPOption"]:
        """This option for candidate stages, whose plans share a session; see `StagePlanner`."""
        from alpa_cfp.extraction.analysed_program import AnalysedPrograms  # not at the top: see above
        from alpa_cfp.stages.session import StageSession

        if not known:  # the first shape of another pipeline
            self.stage_plans.clear()
        options = self.plan_options.for_candidate_stage()
        with StageSession(options, known.setdefault("programs", AnalysedPrograms())) as session:
            margin = math.sqrt(self.pruning_margin)
            yield replace(self, refine=0, pruning_margin=margin, stage=_StagePlanning(session))

    @property
    def refines_stages(self) -> bool:
        """Whether the best plans of a chosen stage are timed whole: where its profiles are there, and time is."""
        return self.refine > 0 and self.costs == "measure" and self.stage_costs == "profile"

    def plan_key(self, logical_mesh: Any, fields: dict[str, Any]) -> tuple[int, ...]:
        """See `StagePlanning`: alpa's fields say something to the ILP only."""
        del fields
        return nontrivial_sizes(logical_mesh.shape)

    def dominates(self, logical_mesh: Any, other: Any) -> bool:
        """See `StagePlanning`: a finer mesh has the shardings of a coarser one, too, which split along several axes.

        In profile mode, Alpa times plans on both meshes.
        """
        return self.composes and refines(logical_mesh.shape, other.shape)

    def planned_stage(self, phases: int) -> seam.PlannedStage:
        """See `StagePlanning`."""
        assert self.stage is not None
        if self.stage.composed is not None:
            composed = self.stage.composed.composed
            return seam.PlannedStage({}, composed.costs(phases), composed.device_bytes, composed.ends)
        assert self.stage.plan is not None
        # Without why: it is for alpa's compile workers.
        return seam.PlannedStage({"plan": replace(self.stage.plan, account=None)})


def _request(request: seam.PlanRequest) -> "PlanRequest":
    """As planning takes it. A submesh of one axis is the same whether that is the first or the second."""
    from alpa_cfp.alpa.devices import AlpaDevices  # not at the top: see above
    from alpa_cfp.planner.request import PlanRequest

    logical_mesh = request.logical_mesh
    shape = tuple(int(size) for size in logical_mesh.shape)
    is_submesh = getattr(logical_mesh, "virtual_mesh", None) is not None
    mesh = LogicalMesh((1, math.prod(shape)) if is_submesh and max(shape) == math.prod(shape) else shape)
    return PlanRequest(mesh, AlpaDevices(logical_mesh), request.num_micro_batches, request.memory_budget_bytes)
