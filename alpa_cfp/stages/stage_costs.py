"""The costs of pipeline stages, composed from profiles of segments: no stage is compiled for them.

Takes candidate stages; gives for each a plan, the times of its programs for a micro-batch, and the shardings of their
arguments and results. On each mesh, the first stage with a kind of block is divided into its segments, and each
distinct one is compiled and timed under the stage's best estimated plan, without the update, as each micro-batch runs
it. From that the rates of the mesh are fitted, and for the kinds of blocks in these segments a correction: measured
over estimated time. Further stages of these kinds are estimated with both. Invariant: the measured programs depend on
the distinct segments of the stages, not on the number of stages.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from alpa_cfp.analysis.blocks import ParallelBlock
from alpa_cfp.analysis.graph import Graph
from alpa_cfp.analysis.segments import find_segments
from alpa_cfp.candidates.accumulation import MIN_MICRO_BATCH_SHARE, micro_batch_s
from alpa_cfp.candidates.block_candidates import BlockCandidates, CandidateCache, find_block_candidates
from alpa_cfp.candidates.candidate import Candidate
from alpa_cfp.candidates.segment_program import SegmentProgram, segment_program
from alpa_cfp.costs import Rates, Work, estimated_s, fitted, read_local, work_of
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.plan.caveats import Caveats
from alpa_cfp.plan.plan_report import Caveat
from alpa_cfp.search import MEMORY_BYTES, Solution
from alpa_cfp.select.calibration import calibration_programs, rates_of
from alpa_cfp.select.candidate_costs import CandidateCosts
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.select.profile_source import TrackedSource
from alpa_cfp.select.profiles import compiled_collectives, failure_of
from alpa_cfp.select.search_problem import Boundaries, ReshardingEdge, find_boundaries
from alpa_cfp.select.target_costs import target_costs
from alpa_cfp.spmd.module.stage_programs import BoundaryShardings, PhaseCost
from alpa_cfp.spmd.partition import Collective
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from alpa_cfp.targets.target import Target

logger = logging.getLogger(__name__)

# The contractions of a block, by shapes. Blocks that agree in them differ in time only by ops at their boundaries.
Kind = tuple[object, ...]
# The weight of the mesh's calibration in the fit: a few segments cannot separate communication from computing.
_CALIBRATED = 10.0
# The most rounds of measuring segments, each under the plan that is best by the measurements before.
_MAX_ROUNDS = 3
# A measured plan is kept if its time is at most this factor above that of the best plan.
_TOLERANCE = 1.02


@dataclass(frozen=True, slots=True)
class StageEvidence:
    """The evidence from which a stage was planned.

    Attributes:
        candidates: The candidates of the kinds of blocks that were seen; see `find_block_candidates`.
        rates: The fitted rates of the mesh.
        programs: The number of segments that were measured for that.
        caveats: What could not be measured.
    """

    candidates: CandidateCache
    rates: Rates
    programs: int
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True, slots=True)
class Composed:
    """A stage with its best plan, and its costs under that.

    Attributes:
        block_candidates: The candidates of its blocks.
        solution: The plan.
        passes_s: The times of the forward and the backward pass of a micro-batch, without the overhead of programs.
        dispatch_s: The time to start a program.
        arrays_s: The time to pass the arguments and results of all programs.
        device_bytes: The memory that a device may hold.
        ends: The shardings of the arguments and results of each of its programs.
        evidence: The evidence for the plan.
    """

    block_candidates: tuple[BlockCandidates, ...]
    solution: Solution
    passes_s: tuple[float, float]
    dispatch_s: float
    arrays_s: float
    device_bytes: int
    ends: dict[str, BoundaryShardings]
    evidence: StageEvidence

    def costs(self, phases: int) -> tuple[PhaseCost, ...]:
        """The costs of its programs, if a micro-batch runs `phases` of them."""
        times_s = self.passes_s if phases == 2 else (sum(self.passes_s),)
        overhead_s, transient = self.dispatch_s + self.arrays_s / phases, self.solution.memory.transient
        return tuple(PhaseCost(time_s + overhead_s, transient) for time_s in times_s)


@dataclass
class StageCostModel:
    """The cost model of the stages on one mesh, which improves with each stage.

    Attributes:
        mesh: The logical mesh.
        device_bytes: The memory that a device may hold.
        source: The source of profiles; None if all costs are estimates.
        target: The target whose mesh it is, for which segments are compiled and modelled; None for devices.
        rates: The rates of the mesh by its calibration programs; of a target, by its chip and links.
        fitted: The rates fitted to all measured segments.
        correction: For each kind of block its measured time over its estimated time.
    """

    mesh: LogicalMesh
    device_bytes: int
    source: TrackedSource | None
    target: Target | None = None
    rates: Rates = field(default_factory=Rates, init=False)
    fitted: Rates = field(default_factory=Rates, init=False)
    correction: dict[Kind, float] = field(default_factory=dict, init=False)
    _works: list[Work] = field(default_factory=list, init=False)
    _seconds: list[float] = field(default_factory=list, init=False)
    _is_calibrated: bool = field(default=False, init=False)
    _caveats: Caveats = field(default_factory=Caveats, init=False)

    def compose(
        self,
        program: AnalysedProgram,
        candidates: CandidateCache,
        micro_batches: int,
        budget_bytes: int | None,
        limit_s: float,
        memory_bytes: int = MEMORY_BYTES,
    ) -> Composed:
        """Returns the best plan of a stage and its costs.

        Args:
            program: The stage.
            candidates: The candidates of the kinds of blocks that were seen; see `find_block_candidates`.
            micro_batches: The number of micro-batches of a step.
            budget_bytes: The memory that a device may hold; None without limit.
            limit_s: The time limit of a search.
            memory_bytes: The memory limit of the tables of a search.

        Raises:
            MemoryBudgetError: no plan fits into the budget.
        """
        blocks = program.blocks
        block_candidates = find_block_candidates(program.subprograms, self.mesh, candidates)
        kinds = tuple(contraction_kind(blocks.graph, block) for block in blocks.blocks)
        stage = _Stage(program, block_candidates, find_boundaries(program.module, blocks, block_candidates), kinds)
        self._calibrate()
        # The caveats of the mesh; those of this stage are added.
        caveats = Caveats(self._caveats.all)

        def plan_search() -> PlanSearch:
            costs = CandidateCosts(block_candidates, stage.boundaries, self.fitted, micro_batches=micro_batches)
            return PlanSearch(costs, limit_s=limit_s, memory_bytes=memory_bytes, caveats=caveats)

        solution = plan_search().best(1, budget_bytes)[0]
        unknown = {number for number, kind in enumerate(kinds) if kind not in self.correction}
        if self.source is not None and unknown:
            segments = find_segments(blocks)
            distinct = (segments.segments[kind].blocks for kind in segments.kinds)
            parts = [part for part in distinct if unknown.intersection(part)]
            for _ in range(_MAX_ROUNDS):
                self._measure(self.source, stage, solution, parts, caveats)
                search = plan_search()
                best, measured = search.best(1, budget_bytes)[0], search.problem.solution(solution.choices)
                if measured.time_s <= _TOLERANCE * best.time_s:
                    solution = measured
                    break
                solution = best  # by the new measurements
        arrays_s = self.rates.array_s * (len(blocks.graph.parameters) + len(blocks.graph.results))
        passes_s = self._passes_s(stage, solution)
        evidence = StageEvidence(candidates, self.fitted, len(self._works), caveats.all)
        return Composed(
            block_candidates,
            solution,
            passes_s,
            self.rates.dispatch_s,
            arrays_s,
            self.device_bytes,
            self._ends(stage, solution),
            evidence,
        )

    def _calibrate(self) -> None:
        """Measure the rates of the mesh, once."""
        if self.target is not None and not self._is_calibrated:
            self.rates, _ = target_costs(self.target, self.mesh)
            self.fitted = self.rates
        elif self.source is not None and not self._is_calibrated:
            self.rates = self.fitted = rates_of(self.mesh, self.source(calibration_programs(self.mesh)), self._caveats)
        self._is_calibrated = True

    def _measure(
        self,
        source: TrackedSource,
        stage: "_Stage",
        solution: Solution,
        parts: Sequence[Sequence[int]],
        caveats: Caveats,
    ) -> None:
        """Measure parts of a stage under a plan; update the fitted rates and the corrections."""
        made = (
            segment_program(stage.program, stage.block_candidates, solution.choices, part, self.mesh) for part in parts
        )
        segments = [segment for segment in made if segment is not None]
        measured: list[tuple[SegmentProgram, float]] = []
        for segment, profile in zip(segments, source([segment.module for segment in segments]), strict=True):
            program = segment.module.partitioned
            assert program is not None
            if profile is None or profile.status == "failed":
                reason = failure_of(profile) or "it has no profile"
                caveats.warn(f"a segment cannot be measured: what it takes is estimated ({reason})")
                continue
            arrays = len(program.input_shardings) + len(program.output_shardings)
            seconds = max(
                profile.lower_half_mean_s - self.rates.overhead_s(arrays),
                MIN_MICRO_BATCH_SHARE * profile.lower_half_mean_s,
            )
            work, compiled = work_of(program.counted, read_local(program.counted)), compiled_collectives(profile)
            self._works.append(work if compiled is None else replace(work, collectives=compiled))
            self._seconds.append(seconds)
            measured.append((segment, seconds))
        self.fitted = fitted(self._works, self._seconds, self.rates, trust_communication=_CALIBRATED)
        for segment, seconds in measured:
            estimated = self._estimated_s(stage, solution, segment)
            if estimated > 0:
                self.correction |= {stage.kinds[number]: seconds / estimated for number in segment.blocks}
        for part in parts:
            for number in part:
                self.correction.setdefault(stage.kinds[number], 1.0)

    def _estimated_s(self, stage: "_Stage", solution: Solution, segment: SegmentProgram) -> float:
        """The estimated time of a segment for a micro-batch."""
        part = segment.blocks
        candidates = [stage.block_candidates[number].candidates[solution.choices[number]] for number in part]
        resharding_s = sum(
            self._resharding_s(each, solution)
            for each in stage.boundaries.crossings
            if each.first in part and each.second in part
        )
        per_step_s = estimated_s(combined_work([candidate.per_step for candidate in candidates]), self.fitted)
        return sum(map(self._micro_batch_s, candidates)) + resharding_s + segment.has_update * per_step_s

    def _micro_batch_s(self, candidate: Candidate) -> float:
        """The estimated time of a block for a micro-batch."""
        total_s, per_step_s = estimated_s(candidate.work, self.fitted), estimated_s(candidate.per_step, self.fitted)
        return micro_batch_s(per_step_s, total_s)

    def _resharding_s(self, edge: ReshardingEdge, solution: Solution) -> float:
        return float(self.fitted.communication_s(edge.amounts[edge.pair(solution.choices)]))

    def _passes_s(self, stage: "_Stage", solution: Solution) -> tuple[float, float]:
        """The times of the forward and the backward pass of a micro-batch, without the overhead of programs."""
        forward_s, backward_s = 0.0, 0.0
        correction = [self.correction.get(kind, 1.0) for kind in stage.kinds]
        for block, each in zip(stage.program.blocks.blocks, stage.block_candidates, strict=True):
            candidate = each.candidates[solution.choices[each.block]]
            block_s = self._micro_batch_s(candidate) * correction[each.block]
            # The contractions of a block share one iteration space, so each takes about as long.
            roles = [entry.role for entry in block.entries]
            part = roles.count("forward") / len(roles) if roles else 0.0
            forward_s += part * block_s
            backward_s += (1 - part) * block_s
        # A correction compares the time of a segment with that of its blocks and of the resharding between them.
        resharding_s = sum(
            self._resharding_s(each, solution) * (correction[each.first] + correction[each.second]) / 2
            for each in stage.boundaries.crossings
        )
        part = forward_s / (forward_s + backward_s) if forward_s else 0.0
        return forward_s + part * resharding_s, backward_s + (1 - part) * resharding_s

    def _ends(self, stage: "_Stage", solution: Solution) -> dict[str, BoundaryShardings]:
        """The shardings of the arguments and results of a stage's programs.

        A value has the sharding in which its block returns it, since all values that cross a marker leave their blocks.
        A parameter has that of its first use. Only moments may have another one in the stage as a whole, if no block's
        strategy decides it.
        """
        graph, sources = stage.program.blocks.graph, stage.boundaries.places

        def sharding(value: int) -> ArraySharding:
            source = sources.get(graph.origin(value))
            if source is None:  # constant-derived or unused
                return ArraySharding.replicated(self.mesh, len(graph.shape(value)))
            return source.shardings[solution.choices[source.block]]

        return {
            ends.name: BoundaryShardings(tuple(map(sharding, ends.inputs)), tuple(map(sharding, ends.outputs)))
            for ends in stage.program.stages
        }


@dataclass(frozen=True, slots=True)
class _Stage:
    """A stage and its search problem.

    Attributes:
        program: The stage.
        block_candidates: The candidates of its blocks.
        boundaries: The boundaries of its blocks.
        kinds: The kind of each block.
    """

    program: AnalysedProgram
    block_candidates: tuple[BlockCandidates, ...]
    boundaries: Boundaries
    kinds: tuple[Kind, ...]


def combined_work(works: Sequence[Work]) -> Work:
    """The work of several blocks, with collectives of one kind and group size combined."""
    bytes_of: dict[tuple[str, int], float] = {}
    for each in (collective for work in works for collective in work.collectives):
        bytes_of[each.kind, each.group_size] = bytes_of.get((each.kind, each.group_size), 0) + each.size_bytes
    return Work(
        sum(work.flops for work in works),
        sum(work.memory_bytes for work in works),
        tuple(Collective(kind, int(size), group) for (kind, group), size in bytes_of.items()),
    )


def contraction_kind(graph: Graph, block: ParallelBlock) -> Kind:
    """The contractions of a block, equal for blocks that take equally long."""

    def types(values: Sequence[int]) -> tuple[object, ...]:
        return tuple((graph.values[value].shape, graph.values[value].dtype) for value in values)

    ops = [(entry.role, graph.ops[entry.op]) for entry in block.entries]
    entries = sorted((role, op.name, repr((types(op.operands), types(op.results)))) for role, op in ops)
    return (*entries, block.loop is not None)
