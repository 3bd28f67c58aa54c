"""Makes the report of a plan (`plan/plan_report.py`) when the plan is made.

Takes the module, its blocks, the costs of their candidates, the chosen plan and the whole plans that were tried.
Nothing here affects the plan. Invariants: every block of the program is in the report; the times of the chosen
alternatives, the moves and the overhead add up to the predicted time, unless
programs of whole plans were partitioned, which communicate something else than the sum of their parts.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from alpa_cfp.analysis.blocks import Blocks
from alpa_cfp.analysis.contractions import find_contractions
from alpa_cfp.analysis.graph import Graph
from alpa_cfp.analysis.segments import repeated_runs
from alpa_cfp.analysis.structure import find_structure
from alpa_cfp.analysis.updates import find_updates
from alpa_cfp.candidates.block_candidates import BlockCandidates
from alpa_cfp.evidence.communication import Communications, source_of
from alpa_cfp.evidence.naming import SLICES, block_names, contraction_of, is_number, ops_without_rule, parameter_paths
from alpa_cfp.evidence.roles import roles_of
from alpa_cfp.plan.plan_report import (
    Alternative,
    BlockKind,
    BlockReport,
    Caveat,
    Communication,
    Move,
    PlanReport,
    Role,
    Source,
    TriedPlan,
)
from alpa_cfp.plan.signature import Signature
from alpa_cfp.quantities import ordinal
from alpa_cfp.search import SearchProblem
from alpa_cfp.select.candidate_time import CandidateTime, candidate_times
from alpa_cfp.select.measured_plan import MeasuredPlan
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.select.search_problem import Boundaries
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.propagation import donation_pairs
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding


@dataclass(frozen=True)
class PlanEvidence:
    """The values of planning from which a report is made.

    Attributes:
        module: The program.
        blocks: Its blocks.
        mesh: The logical mesh.
        candidates: The candidates of each block.
        boundaries: The values between blocks.
        search: The search, which has the costs of candidates.
        micro_batches: Number of micro-batches in a step.
        plan: The chosen plan.
        tried: The whole plans that were timed.
        overhead_s: Time to start the program.
        programs_measured: Number of programs that were profiled or looked up.
        caveats: Fallbacks and omissions of the planner.
        known_by: Where the times of programs come from that were profiled.
    """

    module: HloModule
    blocks: Blocks
    mesh: LogicalMesh
    candidates: Sequence[BlockCandidates]
    boundaries: Boundaries
    search: PlanSearch
    micro_batches: int
    plan: MeasuredPlan
    tried: Sequence[MeasuredPlan]
    overhead_s: float
    programs_measured: int
    caveats: Sequence[Caveat] = ()
    known_by: Source = "measured"

    def report(self) -> PlanReport:
        """The report of the plan."""
        problem = self.search.problem
        firsts = [each for each in self.candidates if each.kind == each.block]
        shown = {first.kind: self._shown(first) for first in firsts}
        names = block_names(self.module.bytecode, self.blocks)
        trained = trained_parameters(self.module, self.blocks)
        return PlanReport(
            axis_names=tuple(f"axis {number}" for number in range(len(self.mesh.shape))),
            kinds=tuple(self._kind(first, shown[first.kind], names[first.block], trained, problem) for first in firsts),
            blocks=self._blocks(shown, names, trained, problem),
            moves=self._moves(),
            tried=tuple(map(self._tried, self.tried)),
            overhead_s=self.overhead_s,
            programs_measured=self.programs_measured,
            gap_s=self.search.gap_s if math.isfinite(self.search.gap_s) else None,
            caveats=tuple(self.caveats),
            timeline=self.plan.timeline,
        )

    def _shown(self, first: BlockCandidates) -> list[int]:
        """The candidates of a kind that are reported: of those that differ by the order of equal axes the first, and
        what a block of the kind has.
        """
        chosen = zip(self.candidates, self.plan.solution.choices, strict=True)
        found = {int(choice) for each, choice in chosen if each.kind == first.kind}
        known: set[Hashable] = set()
        for number, candidate in enumerate(first.candidates):
            if candidate.order not in known:
                known.add(candidate.order)
                found.add(number)
        return sorted(found)

    def _kind(
        self, first: BlockCandidates, shown: Sequence[int], name: str, trained: frozenset[int], problem: SearchProblem
    ) -> BlockKind:
        """The kind of which `first` is the first block."""
        graph, block, variable = self.blocks.graph, self.blocks.blocks[first.block], problem.variables[first.block]
        costs, of_factors = candidate_times(self.search.costs, first), roles_of(graph, block, trained, name)
        roles = {number: _roles(first.candidates[number].strategy, of_factors) for number in shown}
        communications = self._communications(first, shown, roles, costs, trained)

        def alternative(number: int) -> Alternative:
            candidate, cost = first.candidates[number], costs[number]
            return Alternative(
                roles=roles[number],
                kept=candidate.strategy.state_sharding.value,
                time_s=cost.time_s,
                source=self.known_by if cost.measured else "estimated",
                failure=cost.failure,
                state_bytes=int(variable.state_bytes[number]),
                saved_bytes=int(variable.saved_bytes[number]),
                transient_bytes=int(variable.transient_bytes[number]),
                flops=float(candidate.work.flops),
                communication=communications[number],
                which=_which(candidate.strategy, of_factors),
                communication_source=source_of(candidate, cost.compiled),
                sums_along=_sums_along(candidate.strategy, of_factors),
            )

        return BlockKind(
            contraction=contraction_of(graph, block),
            ops=len(block.members) + len(block.glue),
            without_rule=ops_without_rule(graph, block),
            alternatives=tuple(map(alternative, shown)),
        )

    def _communications(
        self,
        first: BlockCandidates,
        shown: Sequence[int],
        roles: Mapping[int, tuple[Role | None, ...]],
        costs: Sequence[CandidateTime],
        trained: frozenset[int],
    ) -> dict[int, tuple[Communication, ...]]:
        """The communication of the candidates of a kind that are reported, by their numbers."""
        block = self.blocks.blocks[first.block]
        of_strategy = {candidate.strategy: number for number, candidate in enumerate(first.candidates)}
        replicated = {
            number: of_strategy[replace(first.candidates[number].strategy, state_sharding=StateSharding.REPLICATED)]
            for number in shown
        }
        # That of sharded state is derived from that of the same factors with replicated state.
        needed = sorted({*shown, *replicated.values()})
        # One that computes as another one is measured by the program of that.
        numbers = self.search.costs.numbers[first.block]
        made = [costs[i].measured and self.search.costs.target(numbers[i]) == numbers[i] for i in needed]
        weights, results = _weights_of(self.blocks.graph, first, trained.intersection(block.parameters))
        of_base = {base: roles[number] for number, base in replicated.items()}
        found = Communications(
            self.mesh,
            [first.candidates[i] for i in needed],
            [roles.get(i) or of_base[i] for i in needed],
            made,
            [costs[i].compiled for i in needed],
            weights,
            results,
        ).all()
        return dict(zip(needed, found, strict=True))

    def _blocks(
        self, shown: Mapping[int, Sequence[int]], names: Sequence[str], trained: frozenset[int], problem: SearchProblem
    ) -> tuple[BlockReport, ...]:
        """The blocks; `shown` has for each kind, in order, the candidates that are reported."""
        paths, kinds = parameter_paths(self.module.bytecode), {kind: number for number, kind in enumerate(shown)}
        segments = segments_of([each.kind for each in self.candidates])
        reports: list[BlockReport] = []
        for own, chosen in zip(self.candidates, self.plan.solution.choices, strict=True):
            variable = problem.variables[own.block]
            used = tuple(each for each in self.blocks.blocks[own.block].parameters if each in trained)
            segment, repetition = segments[own.block]
            reports.append(
                BlockReport(
                    name=names[own.block],
                    kind=kinds[own.kind],
                    chosen=shown[own.kind].index(int(chosen)),
                    weights=tuple(paths[number] for number in used),
                    segment=segment,
                    repetition=repetition,
                    parameters=used,
                    state_bytes=int(variable.state_bytes[chosen]),
                    saved_bytes=int(variable.saved_bytes[chosen]),
                    transient_bytes=int(variable.transient_bytes[chosen]),
                )
            )
        return tuple(reports)

    def _moves(self) -> tuple[Move, ...]:
        """The resharding of the plan."""
        choices, costs, moves = self.plan.solution.choices, self.search.costs, list[Move]()
        for crossing in self.boundaries.crossings:
            count, size = (self.micro_batches * float(amount) for amount in crossing.amounts[crossing.pair(choices)])
            if count:
                table = costs.between.resharding_s(crossing, costs.means)
                time_s = table.at(choices[crossing.first], choices[crossing.second])
                moves.append(Move(crossing.first, crossing.second, time_s, round(size), round(count)))
        return tuple(moves)

    def _tried(self, each: MeasuredPlan) -> TriedPlan:
        return TriedPlan(
            name=each.name,
            predicted_s=each.solution.time_s + self.overhead_s,
            measured_s=each.measured_s,
            needed_bytes=each.needed_bytes,
            collectives=each.collectives,
            failure=each.failure,
            chosen=each.solution.choices == self.plan.solution.choices,
        )


def signed(report: PlanReport, signature: Signature) -> PlanReport:
    """Adds to a report the names of the mesh's axes, and the paths of weights that its program only numbers.

    Args:
        report: The report of a program whose parameters are the inputs of `signature`.
        signature: The signature of the planned function.
    """

    def with_paths(block: BlockReport) -> BlockReport:
        known = zip(block.weights, block.parameters, strict=True)
        weights = (signature.inputs[number].path if is_number(path) else path for path, number in known)
        return replace(block, weights=tuple(weights))

    # The plan's logical mesh may have another shape than the user's.
    is_same = len(signature.axis_names) == len(report.axis_names)
    names = signature.axis_names if is_same else report.axis_names
    return replace(report, axis_names=names, blocks=tuple(map(with_paths, report.blocks)))


def trained_parameters(module: HloModule, blocks: Blocks) -> frozenset[int]:
    """The numbers of the parameters that are weights.

    They are the parameters that the program updates and also uses otherwise. If it updates none, they are the right
    operands of forward contractions, and the tables of lookups.
    """
    graph = blocks.graph
    updated = {number for update in find_updates(graph, donation_pairs(module)) for number in update.weights}
    if updated:
        return frozenset(updated)
    structure, found = find_structure(graph), set()
    forward = {entry.op for block in blocks.blocks for entry in block.entries if entry.role == "forward"}
    for contraction in find_contractions(graph, structure):
        table, right = contraction.operands
        value = table if graph.ops[contraction.op].name == "stablehlo.gather" else right
        origin = graph.values[structure.origin[value]]
        while origin.op is not None and graph.ops[origin.op].name in SLICES:
            origin = graph.values[structure.origin[graph.ops[origin.op].operands[0]]]
        if contraction.op in forward and origin.op is None:
            found.add(origin.position)
    return frozenset(found)


def segments_of(kinds: Sequence[int]) -> list[tuple[int, int]]:
    """Returns for each block the number of its segment, and the index of the segment among the equal ones.

    Args:
        kinds: The kind of each block. Segments are equal if they have the same kinds of blocks in the same order.
    """
    number_of: dict[tuple[int, ...], int] = {}
    count_of: dict[int, int] = {}
    found: list[tuple[int, int]] = []
    for start, stop in repeated_runs(kinds):
        number = number_of.setdefault(tuple(kinds[start:stop]), len(number_of))
        repetition = count_of.get(number, 0)
        count_of[number] = repetition + 1
        found += [(number, repetition)] * (stop - start)
    return found


def _weights_of(
    graph: Graph, block: BlockCandidates, weights: frozenset[int]
) -> tuple[frozenset[int], tuple[bool, ...]]:
    """The inputs of a block that are weights, and for each output whether it has the shape of one, maybe transposed."""
    values = {graph.parameters[number] for number in weights}
    inputs = frozenset(number for number, value in enumerate(block.inputs) if graph.origin(value) in values)
    shapes = {tuple(sorted(graph.shape(value))) for value in values}
    return inputs, tuple(tuple(sorted(graph.shape(value))) in shapes for value in block.outputs)


def _roles(strategy: BlockStrategy, of_factors: Sequence[Role]) -> tuple[Role | None, ...]:
    return tuple(None if factor is None else of_factors[factor] for factor in strategy.factors)


def _which(strategy: BlockStrategy, of_factors: Sequence[Role]) -> tuple[str | None, ...]:
    """For each axis which of several dims with the same role it splits ("1st of 2 dims"); empty if there are none."""
    which = tuple(None if factor is None else _position(factor, of_factors) for factor in strategy.factors)
    return which if any(which) else ()


def _position(factor: int, of_factors: Sequence[Role]) -> str | None:
    """Which of several dims with the same role a factor splits; None if there is one."""
    same = [each for each, role in enumerate(of_factors) if role == of_factors[factor]]
    return f"{ordinal(same.index(factor) + 1)} of {len(same)} dims" if len(same) > 1 else None


def _sums_along(strategy: BlockStrategy, of_factors: Sequence[Role]) -> str:
    factor = strategy.sums_along
    if factor is None:
        return ""
    return ", ".join(filter(None, (of_factors[factor], _position(factor, of_factors))))
