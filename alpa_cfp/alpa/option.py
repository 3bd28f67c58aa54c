"""`CFPOption`: the options of CFP, as an auto-sharding option of Alpa's methods."""

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
    from alpa_cfp.planner.request import PlanRequest
    from alpa_cfp.stages.planning import ComposedStage
    from alpa_cfp.stages.session import StageSession
    from alpa_cfp.stages.stage_costs import StageEvidence

StageCosts = Literal["profile", "compose"]


@dataclass
class _StagePlanning:
    """The session of candidate stages, and the result for the last one."""

    session: "StageSession"
    composed: "ComposedStage | None" = None
    plan: Plan | None = None


@dataclass
class CFPOption(AutoShardingOption):
    """Options of CFP, in the place of those of Alpa's ILP; CFP ignores the fields of `AutoShardingOption`.

    The fields from `costs` to `plan`, and `recompute`, are those of `PlanOptions`. In a pipeline whose stages alpa
    chooses, `refine` applies to the chosen stages, where `stage_costs` is "profile"; candidates have the square root of
    `pruning_margin`.

    Attributes:
        stage_costs: The source of the costs of a pipeline's candidate stages: "profile" lets alpa compile and time each
            stage, "compose" composes them from profiles of the stage's segments, and no stage is compiled.
        plans: The plans that were made or used with this option in this process, the newest last.
    """

    # Repeated: no dataclass can inherit from both the frozen `PlanOptions` and alpa's unfrozen `AutoShardingOption`.
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
    stage_costs: StageCosts = "profile"
    plan: Plan | Path | str | None = None
    plans: list[Plan] = field(default_factory=list, compare=False, repr=False)
    # Alpa derives the options of candidate stages by `dataclasses.replace`, which keeps only fields of `__init__`.
    # The plans of candidate stages of the last pipeline, by digests of programs and mesh shapes, each with its evidence
    # if costs were composed. A chosen stage keeps its plan, if that is not refined.
    _stage_plans: dict[tuple[str, tuple[int, ...]], tuple[Plan, "StageEvidence | None"]] = field(
        default_factory=dict, compare=False, repr=False
    )
    # The planning of candidate stages, while it goes on.
    _stage: "_StagePlanning | None" = field(default=None, compare=False, repr=False)
    recompute: bool | None = None

    def __post_init__(self) -> None:
        check_choices(self, {"costs": Costs, "logical_mesh_shapes": MeshShapes, "stage_costs": StageCosts})
        check_numbers(self)

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies and other processes, without plans."""
        return {**self.__dict__, "plans": [], "_stage_plans": {}, "_stage": None}

    @property
    def plan_options(self) -> PlanOptions:
        """The fields of `PlanOptions`."""
        return PlanOptions(**{each.name: getattr(self, each.name) for each in dataclasses.fields(PlanOptions)})

    def annotate_module(self, module: HloModule, request: seam.PlanRequest) -> None:
        """Plan `module` and write the plan into it, for alpa's auto-sharding pass (see `Planner`).

        The predicted seconds of a step become alpa's objective.

        Raises:
            StagePlanError: see `plan_module`.
        """
        # Alpa's ILP leaves its objective here, and the executable reads it.
        auto_sharding.last_objective = self.plan_module(module, request).predicted_s

    def plan_module(self, module: HloModule, request: seam.PlanRequest) -> Plan:
        """Plan `module`, write the plan into it, and return the plan.

        A candidate stage whose costs are composed is not changed (see `planned_stage`).

        Raises:
            StagePlanError: it is a candidate stage of a pipeline, and has no plan.
        """
        converted = plan_request(request)
        try:
            if self._stage is None:
                plan = self._plan_step(module, converted)
            else:
                plan = self._plan_candidate(module, converted, self._stage)
        except (NoPlanError, MemoryBudgetError, NoRunnablePlanError) as error:
            if self._stage is None:
                raise
            raise StagePlanError(str(error)) from error
        self.plans.append(plan)
        return plan

    def _plan_step(self, module: HloModule, request: "PlanRequest") -> Plan:
        """Plan a whole step, or a chosen stage of a pipeline."""
        # Not at the top: alpa pickles options, and its workers need no planner.
        from alpa_cfp.extraction.analysed_program import AnalysedProgram
        from alpa_cfp.planner.planner import plan_whole

        options, evidence, program = self.plan_options, None, AnalysedProgram(module)
        if self.plan is None and self._stage_plans:
            key = program.digest, nontrivial_sizes(request.mesh.shape)
            chosen, evidence = self._stage_plans.get(key, (None, None))
            if chosen is not None and self.refines_stages and request.mesh.num_devices > 1:
                # Its candidates are measured; its best plans are not yet timed end to end.
                options, evidence = options.with_closer_pruning(), None
            elif chosen is not None:
                options = replace(options, plan=chosen)
        made = plan_whole(program, request, options)
        module.become(made.module)
        if evidence is None:
            return made.plan
        from alpa_cfp.stages.planning import explain_stage

        return explain_stage(program, made.plan, evidence, request, self.plan_options)

    def _plan_candidate(self, module: HloModule, request: "PlanRequest", stage: _StagePlanning) -> Plan:
        """Plan a candidate stage."""
        from alpa_cfp.planner.planner import plan_program, use_plan
        from alpa_cfp.stages.planning import compose_stage

        session = stage.session
        program = session.programs.of(module)
        stage.composed = None
        if self.composes and self.plan is None:
            # The module is not changed: `planned_stage` has its costs and the shardings of arguments and results.
            stage.composed = compose_stage(program, request, session)
            plan, evidence = stage.composed.plan, stage.composed.composed.evidence
        else:
            if self.plan is None:
                made = plan_program(program, request, session, needs_profiles=False)
            else:
                made = use_plan(program, request, self.plan_options)
            module.become(made.module)
            plan, evidence = made.plan, None
        stage.plan = plan
        self._stage_plans[plan.program, nontrivial_sizes(request.mesh.shape)] = plan, evidence
        return plan

    @property
    def plans_candidates(self) -> bool:
        """Whether this is the option of candidate stages (see `planning_stages`)."""
        return self._stage is not None

    @property
    def composes(self) -> bool:
        """Whether it gives the costs of candidate stages (see `StagePlanner`)."""
        return self.stage_costs == "compose"

    @contextlib.contextmanager
    def planning_stages(self, known: dict[str, Any]) -> Iterator["CFPOption"]:
        """A copy of this option for candidate stages, whose plans share a session; see `StagePlanner`."""
        from alpa_cfp.extraction.analysed_program import AnalysedPrograms  # not at the top: see above
        from alpa_cfp.stages.session import StageSession

        if not known:  # the first shape of another pipeline
            self._stage_plans.clear()
        options = self.plan_options.for_candidate_stage()
        with StageSession.open(options, known.setdefault("programs", AnalysedPrograms())) as session:
            margin = math.sqrt(self.pruning_margin)
            yield replace(self, refine=0, pruning_margin=margin, _stage=_StagePlanning(session))

    @property
    def refines_stages(self) -> bool:
        """Whether the best plans of a chosen stage are timed end to end."""
        return self.refine > 0 and self.costs == "measure" and self.stage_costs == "profile"

    def plan_key(self, logical_mesh: Any, fields: dict[str, Any]) -> tuple[int, ...]:
        """See `StagePlanning`; alpa's fields are for the ILP only."""
        del fields
        return nontrivial_sizes(logical_mesh.shape)

    def dominates(self, logical_mesh: Any, other: Any) -> bool:
        """See `StagePlanning`: a finer mesh has all shardings of a coarser one, by splits along several axes.

        In profile mode, Alpa times plans on both meshes.
        """
        return self.composes and refines(logical_mesh.shape, other.shape)

    def planned_stage(self, phases: int) -> seam.PlannedStage:
        """See `StagePlanning`."""
        assert self._stage is not None
        if self._stage.composed is not None:
            composed = self._stage.composed.composed
            return seam.PlannedStage({}, composed.costs(phases), composed.device_bytes, composed.ends)
        assert self._stage.plan is not None
        # Without the report: alpa's compile workers do not need it.
        return seam.PlannedStage({"plan": replace(self._stage.plan, account=None)})


def plan_request(request: seam.PlanRequest) -> "PlanRequest":
    """Alpa's request as one of the planner; a submesh of one axis has it as the second."""
    from alpa_cfp.alpa.devices import AlpaDevices  # not at the top: see above
    from alpa_cfp.planner.request import PlanRequest, TargetDevices

    logical_mesh = request.logical_mesh
    shape = tuple(int(size) for size in logical_mesh.shape)
    virtual = getattr(logical_mesh, "virtual_mesh", None)
    is_submesh, part = virtual is not None, getattr(virtual, "target", None)  # see `target_stages`
    mesh = LogicalMesh((1, math.prod(shape)) if is_submesh and max(shape) == math.prod(shape) else shape)
    devices = AlpaDevices(logical_mesh) if part is None else TargetDevices(part)
    return PlanRequest(mesh, devices, request.num_micro_batches, request.memory_budget_bytes)
