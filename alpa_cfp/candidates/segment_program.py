"""A segment of a stage as a program of its own, as it is in a plan of the stage (CFP, section 5).

Takes a stage's program with the candidates that are chosen for its blocks; gives what a micro-batch runs of some of
these blocks. Invariant: weights, and the sums of their gradients, lie as they do in the stage, although the update that
decides it is left out; but a parameter that other segments use as well, in another way, may lie as it is used here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from alpa_cfp.analysis.ordering import Order
from alpa_cfp.apply.annotate import annotate
from alpa_cfp.apply.micro_batch_programs import partition_accumulating
from alpa_cfp.candidates.block_candidates import BlockCandidates
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.extraction.extractor import Subprogram, cut, without_ops
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import partition_to_run
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from alpa_cfp.strategies.block_strategy import StateSharding
from alpa_cfp.strategies.state_sharding import StateShardings, find_state_shardings


@dataclass(frozen=True, slots=True)
class SegmentProgram:
    """Some blocks as a program of their own.

    Attributes:
        blocks: Which ones.
        module: The program.
        inputs: For each of its parameters the value of the stage that it is.
        has_update: Whether it has what is done once a step.
    """

    blocks: Sequence[int]
    module: HloModule
    inputs: tuple[int, ...]
    has_update: bool


def segment_program(
    program: AnalysedProgram,
    units: Sequence[BlockCandidates],
    choices: Sequence[int],
    blocks: Sequence[int],
    mesh: LogicalMesh,
) -> SegmentProgram | None:
    """Some blocks of a stage; None where all they do is the update.

    Args:
        program: The stage.
        units: Its units.
        choices: For each of them the number of the candidate that is chosen.
        blocks: Which of its blocks.
        mesh: The logical mesh.
    """
    left = without_ops(program.blocks, blocks, program.update)
    if not left.blocks:
        return None
    ops = (op for block in left.blocks for op in (*block.members, *block.glue))
    part = cut(program.module, left, Order(left.graph).of(ops), "segment")
    strategies = [units[block.index].candidates[choices[block.index]].strategy for block in left.blocks]
    if not program.update:
        annotate(part.module, part.blocks, mesh, strategies)
        part.module.partitioned = partition_to_run(part.module, predicts=True)
    else:
        whole = _shared_in_stage(program, units, choices, mesh)
        state_shardings = _shared_in_part(program, part, whole) if whole.parameters else None
        annotate(part.module, part.blocks, mesh, strategies, state_shardings=state_shardings)
        partition_accumulating(part.module, part.outputs, program.gradients)
    return SegmentProgram(blocks, part.module, part.inputs, has_update=not program.update)


def _shared_in_stage(
    program: AnalysedProgram, units: Sequence[BlockCandidates], choices: Sequence[int], mesh: LogicalMesh
) -> StateShardings:
    """What a stage shares, by its parameters and ops."""
    chosen = [unit.candidates[choice].strategy for unit, choice in zip(units, choices, strict=True)]
    if all(strategy.state_sharding is not StateSharding.ZERO3 for strategy in chosen):
        return StateShardings({}, {})
    graph = program.blocks.graph
    used = {value: ArraySharding.replicated(mesh, len(graph.shape(value))) for value in graph.parameters}
    for unit, strategy in zip(reversed(units), reversed(chosen), strict=True):
        as_used = replace(strategy, state_sharding=StateSharding.REPLICATED)
        candidate = next(each for each in unit.candidates if each.strategy == as_used)
        used.update(zip(unit.inputs, candidate.inputs, strict=True))  # the first use says how it lies
    return find_state_shardings(program.blocks, program.updates, chosen, [used[value] for value in graph.parameters])


def _shared_in_part(program: AnalysedProgram, part: Subprogram, whole: StateShardings) -> StateShardings:
    """The same of a part of the stage, by its parameters and ops."""
    graph, inner = program.blocks.graph, part.blocks.graph
    state_shardings = StateShardings({}, {})
    for number, value in enumerate(graph.values[value] for value in part.inputs):
        if value.op is None and value.position in whole.parameters:
            state_shardings.parameters[number] = whole.parameters[value.position]
    for update in program.updates:
        if update.weights[0] not in whole.parameters:
            continue
        taken = {graph.origin(value) for op in update.ops for value in graph.ops[op].operands}
        for output, result in zip(part.outputs, inner.results, strict=True):
            add = inner.producer(result)
            if add is not None and output in taken and output in program.gradients:
                # What was accumulated so far lies as the sum does.
                state_shardings.ops[add.index] = whole.ops[update.ops[0]]
                for value in (inner.values[operand] for operand in add.operands):
                    if value.op is None:
                        state_shardings.parameters[value.position] = whole.ops[update.ops[0]]
    return state_shardings
