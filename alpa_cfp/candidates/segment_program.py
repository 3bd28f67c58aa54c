"""A segment of a stage as a program of its own, partitioned as in a plan of the stage (CFP, section 5).

Takes a stage's program with the candidates that are chosen for its blocks; gives the program of one micro-batch of some
of these blocks. Invariant: weights and the sums of their gradients are sharded as in the stage, although the update,
which decides that, is left out. Only a parameter that other segments use with another sharding may be sharded as this
segment uses it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from alpa_cfp.analysis.ordering import Order
from alpa_cfp.apply.annotate import annotate
from alpa_cfp.apply.micro_batch_programs import partition_accumulating
from alpa_cfp.candidates.block_candidates import BlockCandidates
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.extraction.extractor import Subprogram, extract, without_ops
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import partition_to_run
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from alpa_cfp.strategies.block_strategy import StateSharding
from alpa_cfp.strategies.state_sharding import StateShardings, find_state_shardings


@dataclass(frozen=True, slots=True)
class SegmentProgram:
    """Some blocks as a program of their own.

    Attributes:
        blocks: The indices of the blocks.
        module: The program.
        inputs: For each of its parameters the value of the stage that it is.
        has_update: Whether it includes the work that is done once a step.
    """

    blocks: Sequence[int]
    module: HloModule
    inputs: tuple[int, ...]
    has_update: bool


def segment_program(
    program: AnalysedProgram,
    block_candidates: Sequence[BlockCandidates],
    choices: Sequence[int],
    blocks: Sequence[int],
    mesh: LogicalMesh,
) -> SegmentProgram | None:
    """Returns the program of some blocks of a stage; None if they do nothing but the update.

    Args:
        program: The stage.
        block_candidates: The candidates of its blocks.
        choices: For each of its blocks the number of the chosen candidate.
        blocks: The indices of the segment's blocks.
        mesh: The logical mesh.
    """
    remaining = without_ops(program.blocks, blocks, program.update)
    if not remaining.blocks:
        return None
    ops = (op for block in remaining.blocks for op in (*block.members, *block.glue))
    segment = extract(program.module, remaining, Order(remaining.graph).of(ops), "segment")
    strategies = [block_candidates[block.index].candidates[choices[block.index]].strategy for block in remaining.blocks]
    if not program.update:
        annotate(segment.module, segment.blocks, mesh, strategies)
        segment.module.partitioned = partition_to_run(segment.module, predicts=True)
    else:
        of_stage = _of_stage(program, block_candidates, choices, mesh)
        state_shardings = _of_segment(program, segment, of_stage) if of_stage.parameters else None
        annotate(segment.module, segment.blocks, mesh, strategies, state_shardings=state_shardings)
        partition_accumulating(segment.module, segment.outputs, program.gradients)
    return SegmentProgram(blocks, segment.module, segment.inputs, has_update=not program.update)


def _of_stage(
    program: AnalysedProgram, block_candidates: Sequence[BlockCandidates], choices: Sequence[int], mesh: LogicalMesh
) -> StateShardings:
    """The state shardings of a stage, by its parameters and ops."""
    chosen = [each.candidates[choice].strategy for each, choice in zip(block_candidates, choices, strict=True)]
    if all(strategy.state_sharding is not StateSharding.ZERO3 for strategy in chosen):
        return StateShardings({}, {})
    graph = program.blocks.graph
    used = {value: ArraySharding.replicated(mesh, len(graph.shape(value))) for value in graph.parameters}
    # In reverse, so that the first use of a parameter decides its sharding.
    for block, strategy in zip(reversed(block_candidates), reversed(chosen), strict=True):
        replicated = replace(strategy, state_sharding=StateSharding.REPLICATED)
        candidate = next(each for each in block.candidates if each.strategy == replicated)
        used.update(zip(block.inputs, candidate.inputs, strict=True))
    return find_state_shardings(program.blocks, program.updates, chosen, [used[value] for value in graph.parameters])


def _of_segment(program: AnalysedProgram, segment: Subprogram, of_stage: StateShardings) -> StateShardings:
    """The state shardings of a segment of the stage, by its own parameters and ops."""
    graph, inner = program.blocks.graph, segment.blocks.graph
    state_shardings = StateShardings({}, {})
    for number, value in enumerate(graph.values[value] for value in segment.inputs):
        if value.op is None and value.position in of_stage.parameters:
            state_shardings.parameters[number] = of_stage.parameters[value.position]
    for update in program.updates:
        if update.weights[0] not in of_stage.parameters:
            continue
        used = {graph.origin(value) for op in update.ops for value in graph.ops[op].operands}
        for output, result in zip(segment.outputs, inner.results, strict=True):
            add = inner.producer(result)
            if add is not None and output in used and output in program.gradients:
                # The accumulator is sharded as the sum.
                state_shardings.ops[add.index] = of_stage.ops[update.ops[0]]
                for value in (inner.values[operand] for operand in add.operands):
                    if value.op is None:
                        state_shardings.parameters[value.position] = of_stage.ops[update.ops[0]]
    return state_shardings
