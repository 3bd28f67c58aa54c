"""What a stage of a pipeline costs, composed from profiles of segments: no stage is compiled for it.

Takes candidate stages; gives a plan for each, what its programs take for a micro-batch, and where they take and leave
their arrays. On each mesh, the first stage that has a kind of block is cut into its segments, and each distinct one is
compiled and timed under the stage's best estimated plan, without the update, as each micro-batch runs it. That gives
the rates of the mesh, and for the blocks of these segments how much longer than estimated they take. All further stages
of the same kinds are estimated with both.
Invariant: what is measured depends on the distinct segments of the stages, not on how many stages there are.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from alpa_cfp.analysis.blocks import ParallelBlock
from alpa_cfp.analysis.graph import Graph
from alpa_cfp.analysis.segments import find_segments
from alpa_cfp.candidates.accumulation import LEAST_EACH, micro_batch_s
from alpa_cfp.candidates.block_candidates import BlockCandidates, Candidate, find_block_candidates
from alpa_cfp.candidates.segment_program import SegmentProgram, segment_program
from alpa_cfp.costs import Rates, Work, estimated_s, fitted, read_local, work_of
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.plan.caveats import Caveats
from alpa_cfp.plan.plan_report import Caveat
from alpa_cfp.search import MEMORY_BYTES, Solution
from alpa_cfp.select.calibration import calibration_programs, rates_of
from alpa_cfp.select.plan_search import PlanSearch, compiled_collectives, failure_of
from alpa_cfp.select.profile_source import TrackedSource
from alpa_cfp.select.search_problem import Boundaries, ReshardingEdge, find_boundaries
from alpa_cfp.spmd.module.stage_programs import BoundaryShardings, PhaseCost
from alpa_cfp.spmd.partition import Collective
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh

logger = logging.getLogger(__name__)

# What contracts in a block, by shapes: blocks that agree in it take equally long but for what is done at their ends.
Kind = tuple[object, ...]
# How much the mesh's calibration counts against a segment: a few segments cannot tell communication from computing.
_CALIBRATED = 10.0
# How often at most segments are measured because what was learnt speaks for another plan.
_ROUNDS = 3
# How many times as long as the best plan one may take by estimates that is kept because it was measured.
_WORTH = 1.02


@dataclass(frozen=True, slots=True)
class StageEvidence:
    """What was known when a stage was planned, which can be caveats of it if it is chosen.

    Attributes:
        candidates: Those of the kinds of blocks that were seen; see `find_block_candidates`.
        rates: How fast the mesh is.
        programs: How many segments were measured for that.
        caveats: What was done without.
    """

    candidates: dict[Any, tuple[Candidate, ...]]
    rates: Rates
    programs: int
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True, slots=True)
class Composed:
    """A stage with the plan that is best by what is known.

    Attributes:
        units: Its units.
        solution: What is chosen for each.
        passes_s: What the forward and the backward pass of a micro-batch take, without the overhead of programs.
        dispatch_s: What starting a program takes.
        arrays_s: What handing over the arguments and results of all programs takes.
        device_bytes: What a device may hold.
        ends: How arguments and results lie of each of its programs.
        evidence: What the plan was made from.
    """

    units: tuple[BlockCandidates, ...]
    solution: Solution
    passes_s: tuple[float, float]
    dispatch_s: float
    arrays_s: float
    device_bytes: int
    ends: dict[str, BoundaryShardings]
    evidence: StageEvidence

    def costs(self, phases: int) -> tuple[PhaseCost, ...]:
        """What its programs take, of which there are so many for a micro-batch."""
        times_s = self.passes_s if phases == 2 else (sum(self.passes_s),)
        overhead_s, transient = self.dispatch_s + self.arrays_s / phases, self.solution.memory.transient
        return tuple(PhaseCost(time_s + overhead_s, transient) for time_s in times_s)


@dataclass
class StageCostModel:
    """What is known of the stages on one mesh.

    Attributes:
        mesh: The logical mesh.
        device_bytes: What a device may hold.
        source: Where profiles come from; None: all is estimated.
        rates: How fast the mesh is, by its calibration programs.
        fitted: The same, fitted to all segments that were measured.
        slower: For each kind of block how many times longer than estimated it takes.
    """

    mesh: LogicalMesh
    device_bytes: int
    source: TrackedSource | None
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
        candidates: dict[Any, tuple[Candidate, ...]],
        micro_batches: int,
        budget_bytes: int | None,
        limit_s: float,
        memory_bytes: int = MEMORY_BYTES,
    ) -> Composed:
        """What there is to say of a stage.

        Args:
            program: The stage.
            candidates: Those of the kinds of blocks that were seen; see `find_block_candidates`.
            micro_batches: How many a step has.
            budget_bytes: What a device may hold; None without limit.
            limit_s: How long a search may take.
            memory_bytes: How much memory its tables may take.

        Raises:
            MemoryBudgetError: no plan fits into the budget.
        """
        blocks = program.blocks
        units = find_block_candidates(program.subprograms, self.mesh, candidates)
        kinds = tuple(contraction_kind(blocks.graph, block) for block in blocks.blocks)
        stage = _Stage(program, units, find_boundaries(program.module, blocks, units), kinds)
        self._calibrate()
        # Of the mesh, and then of this stage.
        caveats = Caveats(self._caveats.all)

        def choosing() -> PlanSearch:
            return PlanSearch(
                units, stage.boundaries, self.fitted, None, 1.0, limit_s, micro_batches,
                memory_bytes=memory_bytes, caveats=caveats,
            )  # fmt: skip

        solution = choosing().best(1, budget_bytes)[0]
        unknown = {number for number, kind in enumerate(kinds) if kind not in self.correction}
        if self.source is not None and unknown:
            segments = find_segments(blocks)
            distinct = (segments.segments[kind].blocks for kind in segments.kinds)
            parts = [part for part in distinct if unknown.intersection(part)]
            for _ in range(_ROUNDS):
                self._learn(self.source, stage, solution, parts, caveats)
                now = choosing()
                best, measured = now.best(1, budget_bytes)[0], now.problem.solution(solution.choices)
                if measured.time_s <= _WORTH * best.time_s:
                    solution = measured
                    break
                solution = best  # what was learnt speaks for another plan
        arrays_s = self.rates.array_s * (len(blocks.graph.parameters) + len(blocks.graph.results))
        passes_s = self._passes_s(stage, solution)
        evidence = StageEvidence(candidates, self.fitted, len(self._works), caveats.all)
        return Composed(
            units,
            solution,
            passes_s,
            self.rates.dispatch_s,
            arrays_s,
            self.device_bytes,
            self._ends(stage, solution),
            evidence,
        )

    def _calibrate(self) -> None:
        """Learn how fast the mesh is, once."""
        if self.source is not None and not self._is_calibrated:
            self.rates = self.fitted = rates_of(self.mesh, self.source(calibration_programs(self.mesh)), self._caveats)
        self._is_calibrated = True

    def _learn(
        self,
        source: TrackedSource,
        stage: "_Stage",
        solution: Solution,
        parts: Sequence[Sequence[int]],
        caveats: Caveats,
    ) -> None:
        """Measure parts of a stage, as they are in a plan, and learn how long blocks of their kinds take."""
        made = (segment_program(stage.program, stage.units, solution.choices, part, self.mesh) for part in parts)
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
                profile.lower_half_mean_s - self.rates.overhead_s(arrays), LEAST_EACH * profile.lower_half_mean_s
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
        """What a segment takes."""
        part = segment.blocks
        candidates = [stage.units[number].candidates[solution.choices[number]] for number in part]
        between_s = sum(
            self._between_s(each, solution)
            for each in stage.boundaries.crossings
            if each.first in part and each.second in part
        )
        once_s = estimated_s(combined_work([candidate.per_step for candidate in candidates]), self.fitted)
        return sum(map(self._each_s, candidates)) + between_s + segment.has_update * once_s

    def _each_s(self, candidate: Candidate) -> float:
        """What a block takes for a micro-batch."""
        total_s, once_s = estimated_s(candidate.work, self.fitted), estimated_s(candidate.per_step, self.fitted)
        return micro_batch_s(once_s, total_s)

    def _between_s(self, crossing: ReshardingEdge, solution: Solution) -> float:
        amounts = crossing.amounts[solution.choices[crossing.first], solution.choices[crossing.second]]
        return float(self.fitted.communication_s(amounts))

    def _passes_s(self, stage: "_Stage", solution: Solution) -> tuple[float, float]:
        """What the forward and the backward pass of a micro-batch take, without starting their programs."""
        forward_s, backward_s = 0.0, 0.0
        correction = [self.correction.get(kind, 1.0) for kind in stage.kinds]
        for block, unit in zip(stage.program.blocks.blocks, stage.units, strict=True):
            candidate = unit.candidates[solution.choices[unit.block]]
            each_s = self._each_s(candidate) * correction[unit.block]
            # The contractions of a block share one iteration space, so each takes about as long.
            roles = [entry.role for entry in block.entries]
            part = roles.count("forward") / len(roles) if roles else 0.0
            forward_s += part * each_s
            backward_s += (1 - part) * each_s
        # A segment's time was compared with that of its blocks and of what is between them.
        between_s = sum(
            self._between_s(each, solution) * (correction[each.first] + correction[each.second]) / 2
            for each in stage.boundaries.crossings
        )
        part = forward_s / (forward_s + backward_s) if forward_s else 0.0
        return forward_s + part * between_s, backward_s + (1 - part) * between_s

    def _ends(self, stage: "_Stage", solution: Solution) -> dict[str, BoundaryShardings]:
        """How the arguments and results of a stage's programs lie.

        Where a block leaves what comes from it, and parameters where they are first used: all that crosses a marker
        leaves its block. Only moments that no block's strategy places may be elsewhere in the stage as a whole.
        """
        graph, places = stage.program.blocks.graph, stage.boundaries.places

        def lies(value: int) -> ArraySharding:
            place = places.get(graph.origin(value))
            if place is None:  # it derives from constants, or nothing uses it
                return ArraySharding.replicated(self.mesh, len(graph.shape(value)))
            return place.shardings[solution.choices[place.unit]]

        return {
            ends.name: BoundaryShardings(tuple(map(lies, ends.inputs)), tuple(map(lies, ends.outputs)))
            for ends in stage.program.stages
        }


@dataclass(frozen=True, slots=True)
class _Stage:
    """A stage, and what is found out about it without measuring.

    Attributes:
        program: The stage.
        units: Its units.
        boundaries: Their boundaries.
        kinds: Of each block.
    """

    program: AnalysedProgram
    units: tuple[BlockCandidates, ...]
    boundaries: Boundaries
    kinds: tuple[Kind, ...]


def combined_work(works: Sequence[Work]) -> Work:
    """What several blocks do, whose collectives of one kind and size of groups are combined."""
    bytes_of: dict[tuple[str, int], float] = {}
    for each in (collective for work in works for collective in work.collectives):
        bytes_of[each.kind, each.group_size] = bytes_of.get((each.kind, each.group_size), 0) + each.size_bytes
    return Work(
        sum(work.flops for work in works),
        sum(work.written_bytes for work in works),
        tuple(Collective(kind, int(size), group) for (kind, group), size in bytes_of.items()),
    )


def contraction_kind(graph: Graph, block: ParallelBlock) -> Kind:
    """What a block contracts."""

    def types(values: Sequence[int]) -> tuple[object, ...]:
        return tuple((graph.values[value].shape, graph.values[value].dtype) for value in values)

    ops = [(entry.role, graph.ops[entry.op]) for entry in block.entries]
    entries = sorted((role, op.name, repr((types(op.operands), types(op.results)))) for role, op in ops)
    return (*entries, block.loop is not None)
