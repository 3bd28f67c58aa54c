"""The account of a plan, made when the plan is (`account.py` says what it holds).

Takes what planning knew: the module, its blocks and units, what candidates cost, the chosen ones and the whole plans
that were tried. Nothing here decides anything. Invariants: the times of the chosen alternatives, the moves and the
overhead add up to what was predicted where no whole plan was compiled; every block of the program is in the account.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from alpa_cfp.analysis.blocks import Blocks
from alpa_cfp.analysis.contractions import find_contractions
from alpa_cfp.analysis.graph import Graph
from alpa_cfp.analysis.segments import repeated_runs
from alpa_cfp.analysis.structure import find_structure
from alpa_cfp.analysis.updates import find_updates
from alpa_cfp.candidates.block_candidates import BlockCandidates
from alpa_cfp.evidence.communicating import Communications, source_of
from alpa_cfp.evidence.naming import block_names, contraction_of, is_number, ops_without_rule, parameter_paths
from alpa_cfp.evidence.roles import roles_of
from alpa_cfp.plan.plan_report import Alternative, BlockReport, Caveat, Kind, Move, PlanReport, Role, Tried
from alpa_cfp.plan.signature import Signature
from alpa_cfp.quantities import ordinal
from alpa_cfp.search import SearchProblem
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.select.refinement import MeasuredPlan
from alpa_cfp.select.search_problem import Boundaries
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.propagation import donation_pairs
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy

# What takes a layer's weights from those of all layers.
_SLICES = frozenset({"stablehlo.slice", "stablehlo.dynamic_slice"})


@dataclass(frozen=True)
class PlanEvidence:
    """What is known of a plan when it is made.

    Attributes:
        module: The program.
        blocks: Its blocks.
        mesh: The logical mesh.
        units: The units of the program.
        boundaries: Their boundaries.
        choosing: What candidates cost.
        micro_batches: How many a step has.
        refined: The plan.
        tried: The whole plans that were timed.
        overhead_s: What starting the program takes.
        programs_measured: How many programs were profiled or looked up.
        caveats: What planning had to do without.
    """

    module: HloModule
    blocks: Blocks
    mesh: LogicalMesh
    units: Sequence[BlockCandidates]
    boundaries: Boundaries
    choosing: PlanSearch
    micro_batches: int
    refined: MeasuredPlan
    tried: Sequence[MeasuredPlan]
    overhead_s: float
    programs_measured: int
    caveats: Sequence[Caveat] = ()

    def account(self) -> PlanReport:
        """The account of the plan."""
        problem = self.choosing.problem
        firsts = [unit for unit in self.units if unit.kind == unit.block]
        names = block_names(self.module.bytecode, self.blocks)
        trained = trained_parameters(self.module, self.blocks)
        return PlanReport(
            axis_names=_axis_names(len(self.mesh.shape)),
            kinds=tuple(self._kind(unit, names[unit.block], trained, problem) for unit in firsts),
            blocks=self._blocks({unit.kind: number for number, unit in enumerate(firsts)}, names, trained, problem),
            moves=self._moves(problem),
            tried=tuple(map(self._tried, self.tried)),
            overhead_s=self.overhead_s,
            programs_measured=self.programs_measured,
            gap_s=self.choosing.gap_s if math.isfinite(self.choosing.gap_s) else None,
            caveats=tuple(self.caveats),
        )

    def _kind(self, unit: BlockCandidates, name: str, trained: frozenset[int], problem: SearchProblem) -> Kind:
        graph, block, variable = self.blocks.graph, self.blocks.blocks[unit.block], problem.variables[unit.block]
        costs = self.choosing.candidate_times(unit)
        of_factors = roles_of(graph, block, trained, name)
        roles = [_roles(candidate.strategy, of_factors) for candidate in unit.candidates]
        made = [cost.measured for cost in costs]
        weights, results = _weights_of(graph, unit, trained.intersection(block.parameters))
        compiled = [cost.compiled for cost in costs]
        communications = Communications(self.mesh, unit.candidates, roles, made, compiled, weights, results).all()
        alternatives = (
            Alternative(
                roles=roles[i],
                kept=candidate.strategy.kept.value,
                time_s=costs[i].time_s,
                source="measured" if costs[i].measured else "estimated",
                failure=costs[i].failure,
                state_bytes=int(variable.state_bytes[i]),
                saved_bytes=int(variable.saved_bytes[i]),
                transient_bytes=int(variable.transient_bytes[i]),
                flops=float(candidate.work.flops),
                communication=communications[i],
                which=_which(candidate.strategy, of_factors),
                communication_source=source_of(candidate, compiled[i]),
            )
            for i, candidate in enumerate(unit.candidates)
        )
        return Kind(
            contraction=contraction_of(graph, block),
            ops=len(block.members) + len(block.glue),
            without_rule=ops_without_rule(graph, block),
            alternatives=tuple(alternatives),
        )

    def _blocks(
        self, kinds: dict[int, int], names: Sequence[str], trained: frozenset[int], problem: SearchProblem
    ) -> tuple[BlockReport, ...]:
        paths = parameter_paths(self.module.bytecode)
        segments = segments_of([unit.kind for unit in self.units])
        accounts: list[BlockReport] = []
        for unit, chosen in zip(self.units, self.refined.solution.choices, strict=True):
            variable = problem.variables[unit.block]
            used = tuple(each for each in self.blocks.blocks[unit.block].parameters if each in trained)
            segment, repetition = segments[unit.block]
            accounts.append(
                BlockReport(
                    name=names[unit.block],
                    kind=kinds[unit.kind],
                    chosen=int(chosen),
                    weights=tuple(paths[number] for number in used),
                    segment=segment,
                    repetition=repetition,
                    parameters=used,
                    state_bytes=int(variable.state_bytes[chosen]),
                    saved_bytes=int(variable.saved_bytes[chosen]),
                    transient_bytes=int(variable.transient_bytes[chosen]),
                )
            )
        return tuple(accounts)

    def _moves(self, problem: SearchProblem) -> tuple[Move, ...]:
        """What the plan moves; edges and crossings are in the same order."""
        choices, moves = self.refined.solution.choices, []
        for edge, crossing in zip(problem.edges, self.boundaries.crossings, strict=True):
            pair = choices[crossing.first], choices[crossing.second]
            count, size = (self.micro_batches * float(amount) for amount in crossing.amounts[pair])
            if count:
                moves.append(Move(crossing.first, crossing.second, float(edge.time_s[pair]), round(size), round(count)))
        return tuple(moves)

    def _tried(self, each: MeasuredPlan) -> Tried:
        return Tried(
            name=each.name,
            predicted_s=each.solution.time_s + self.overhead_s,
            measured_s=each.measured_s,
            needed_bytes=each.needed_bytes,
            collectives=each.collectives,
            failure=each.failure,
            chosen=each.solution.choices == self.refined.solution.choices,
        )


def signed(account: PlanReport, signature: Signature) -> PlanReport:
    """`account` with the names of the mesh's axes, and with the paths of weights that its program only numbers.

    Args:
        account: Of a program whose parameters are the inputs of `signature`.
        signature: That of the planned function.
    """

    def with_paths(block: BlockReport) -> BlockReport:
        known = zip(block.weights, block.parameters, strict=True)
        weights = (signature.inputs[number].path if is_number(path) else path for path, number in known)
        return replace(block, weights=tuple(weights))

    # A plan may be for another shape of the mesh than the given one.
    known = len(signature.axis_names) == len(account.axis_names)
    names = signature.axis_names if known else account.axis_names
    return replace(account, axis_names=names, blocks=tuple(map(with_paths, account.blocks)))


def trained_parameters(module: HloModule, blocks: Blocks) -> frozenset[int]:
    """The numbers of the parameters that are weights: those that the program updates and uses otherwise, too; of a
    program that updates none, those that are the right operands of contractions, or tables.
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
        while origin.op is not None and graph.ops[origin.op].name in _SLICES:
            origin = graph.values[structure.origin[graph.ops[origin.op].operands[0]]]
        if contraction.op in forward and origin.op is None:
            found.add(origin.position)
    return frozenset(found)


def segments_of(kinds: Sequence[int]) -> list[tuple[int, int]]:
    """For each block the number of its segment and which of the equal ones it is in.

    Args:
        kinds: For each block its kind. Segments are equal if they have the same kinds of blocks in the same order.
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
    graph: Graph, unit: BlockCandidates, weights: frozenset[int]
) -> tuple[frozenset[int], tuple[bool, ...]]:
    """Which inputs of a unit are weights, and for each output whether it has the shape of one, maybe transposed."""
    values = {graph.parameters[number] for number in weights}
    inputs = frozenset(number for number, value in enumerate(unit.inputs) if graph.origin(value) in values)
    shapes = {tuple(sorted(graph.shape(value))) for value in values}
    return inputs, tuple(tuple(sorted(graph.shape(value))) in shapes for value in unit.outputs)


def _roles(strategy: BlockStrategy, of_factors: Sequence[Role]) -> tuple[Role | None, ...]:
    return tuple(None if factor is None else of_factors[factor] for factor in strategy.factors)


def _which(strategy: BlockStrategy, of_factors: Sequence[Role]) -> tuple[str | None, ...]:
    """Which of the dims with its role each axis splits, where there are several; empty where no axis has a choice."""
    which: list[str | None] = []
    for factor in strategy.factors:
        alike = [] if factor is None else [each for each, role in enumerate(of_factors) if role == of_factors[factor]]
        which.append(
            f"{ordinal(alike.index(factor) + 1)} of {len(alike)} dims" if factor is not None and alike[1:] else None
        )
    return tuple(which) if any(which) else ()


def _axis_names(count: int) -> tuple[str, ...]:
    return tuple(f"axis {number}" for number in range(count))
