"""Candidates: each kind of block under each of its strategies, as a program of its own (CFP, sections 4 and 5).

Takes a module, its blocks and a mesh; gives for every kind of block one partitioned program a strategy. Blocks of one
kind share theirs. Where devices would keep the same state, there is one more for each way to share it. A candidate's
program says how the values at its boundary lie when nothing but its own strategy decides, which is what a plan has to
bring them to. Invariant: candidates of a kind are in the order of its strategies.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from alpa_cfp.analysis.blocks import Blocks, ParallelBlock
from alpa_cfp.analysis.graph import Graph
from alpa_cfp.analysis.segments import kinds_of
from alpa_cfp.analysis.updates import Update, find_updates
from alpa_cfp.apply import annotate
from alpa_cfp.costs import Work, read_local, saved_and_transient, work_of
from alpa_cfp.cut import Cutter, Part
from alpa_cfp.sharing import spread
from alpa_cfp.strategies import BlockStrategy, Kept, strategies_of
from alpa_on_jax.xla_extension.hlo_module import HloModule
from alpa_on_jax.xla_extension.partition import partition_to_run
from alpa_on_jax.xla_extension.propagation import donation_pairs
from alpa_on_jax.xla_extension.sharding import ArraySharding, LogicalMesh

_SHARED = (Kept.MOMENTS_SPLIT, Kept.ALL_SPLIT)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A block with a strategy.

    Attributes:
        strategy: The strategy.
        module: The block alone, partitioned.
        inputs, outputs: How the values at its boundary lie, in the order of the part's.
        work: What a device does.
        saved_bytes: What it keeps for its own backward pass.
        transient_bytes: The most that it holds for a short time.
    """

    strategy: BlockStrategy
    module: HloModule
    inputs: tuple[ArraySharding, ...]
    outputs: tuple[ArraySharding, ...]
    work: Work
    saved_bytes: int
    transient_bytes: int


@dataclass(frozen=True, slots=True)
class Unit:
    """A block of the program and what can become of it.

    Attributes:
        block: Its index.
        kind: The index of the first block that is the same program.
        inputs, outputs: The values at its boundary, in the order of the candidates' shardings.
        candidates: Those of its kind.
    """

    block: int
    kind: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    candidates: tuple[Candidate, ...]


def find_units(module: HloModule, blocks: Blocks, mesh: LogicalMesh) -> tuple[Unit, ...]:
    """The units of a module, one for each block.

    Args:
        module: An unoptimised module.
        blocks: Its blocks.
        mesh: The logical mesh.
    """
    units: list[Unit] = []
    cutter = Cutter(module, blocks)
    ops_of_block = [tuple(sorted((*block.members, *block.glue))) for block in blocks.blocks]
    for number, kind in enumerate(kinds_of(blocks.graph, ops_of_block)):
        inputs, outputs = cutter.boundary(ops_of_block[number])
        if kind == number:
            part = cutter.cut(ops_of_block[number], f"block{kind}")
            candidates = _candidates(part, _late(blocks.graph, blocks.blocks[number], part), mesh)
        else:
            candidates = units[kind].candidates
        units.append(Unit(number, kind, inputs, outputs, candidates))
    return tuple(units)


def _candidates(part: Part, late: frozenset[int], mesh: LogicalMesh) -> tuple[Candidate, ...]:
    (block,) = part.blocks.blocks
    updates = find_updates(part.blocks.graph, donation_pairs(part.module))
    found: list[Candidate] = []
    for strategy in strategies_of(block, mesh.shape):
        found.append(_candidate(part, late, mesh, strategy))
        if _is_kept_twice(part, updates, found[-1]):
            used = found[-1].inputs
            shared = [_candidate(part, late, mesh, replace(strategy, kept=kept), used) for kept in _SHARED]
            found += [each for i, each in enumerate(shared) if i == 0 or each.inputs != shared[0].inputs]
    return tuple(found)


def _is_kept_twice(part: Part, updates: Sequence[Update], candidate: Candidate) -> bool:
    """Whether devices keep the same parts of some state of which they could share."""
    graph = part.blocks.graph
    return any(
        spread(candidate.inputs[number], graph.shape(graph.parameters[number])) != candidate.inputs[number]
        for update in updates
        for number in (*update.weights, *update.moments)
    )


def _candidate(
    part: Part,
    late: frozenset[int],
    mesh: LogicalMesh,
    strategy: BlockStrategy,
    used: Sequence[ArraySharding] | None = None,
) -> Candidate:
    module = replace(part.module)
    annotate(module, part.blocks, mesh, [strategy], used)
    module.partitioned = program = partition_to_run(module)
    local = read_local(program)
    saved, transient = saved_and_transient(local, late)
    work = work_of(program, local)
    return Candidate(strategy, module, program.input_shardings, program.output_shardings, work, saved, transient)


def _late(graph: Graph, block: ParallelBlock, part: Part) -> frozenset[int]:
    """The numbers of the part's inputs that the backward passes of later blocks bring."""
    forward = max((entry.op for entry in block.entries if entry.role == "forward"), default=len(graph.ops))
    producers = (graph.values[graph.origin(value)].op for value in part.inputs)
    return frozenset(number for number, op in enumerate(producers) if op is not None and op > forward)


def distinct(units: Sequence[Unit]) -> list[Candidate]:
    """The candidates of all kinds, those of each kind once."""
    return [candidate for unit in units if unit.kind == unit.block for candidate in unit.candidates]
