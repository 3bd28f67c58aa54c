"""Candidates: each kind of block under each of its strategies, as a program of its own (CFP, sections 4 and 5).

Takes a module, its blocks and a mesh; gives for every kind of block one partitioned program a strategy. Blocks of one
kind share theirs. A candidate's program says how the values at its boundary lie when nothing but its own strategy
decides, which is what a plan has to bring them to. Invariant: candidates of a kind are in the order of its strategies.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from alpa_cfp.analysis.blocks import Blocks
from alpa_cfp.analysis.segments import kinds_of
from alpa_cfp.apply import annotate
from alpa_cfp.cut import Part, cut
from alpa_cfp.strategies import BlockStrategy, strategies_of
from alpa_on_jax.xla_extension.hlo_module import HloModule
from alpa_on_jax.xla_extension.partition import partition_to_run
from alpa_on_jax.xla_extension.sharding import ArraySharding, LogicalMesh


@dataclass(frozen=True, slots=True)
class Candidate:
    """A block with a strategy.

    Attributes:
        strategy: The strategy.
        module: The block alone, partitioned.
        inputs, outputs: How the values at its boundary lie, in the order of the part's.
    """

    strategy: BlockStrategy
    module: HloModule
    inputs: tuple[ArraySharding, ...]
    outputs: tuple[ArraySharding, ...]


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
    ops_of_block = [tuple(sorted((*block.members, *block.glue))) for block in blocks.blocks]
    for number, kind in enumerate(kinds_of(blocks.graph, ops_of_block)):
        part = cut(module, blocks, ops_of_block[number], f"block{kind}")
        candidates = _candidates(part, mesh) if kind == number else units[kind].candidates
        units.append(Unit(number, kind, part.inputs, part.outputs, candidates))
    return tuple(units)


def _candidates(part: Part, mesh: LogicalMesh) -> tuple[Candidate, ...]:
    (block,) = part.blocks.blocks
    return tuple(_candidate(part, mesh, strategy) for strategy in strategies_of(block, mesh.shape))


def _candidate(part: Part, mesh: LogicalMesh, strategy: BlockStrategy) -> Candidate:
    module = dataclasses.replace(part.module)
    annotate(module, part.blocks, mesh, [strategy])
    module.partitioned = partition_to_run(module)
    program = module.partitioned
    return Candidate(strategy, module, program.input_shardings, program.output_shardings)


def distinct(units: Sequence[Unit]) -> list[Candidate]:
    """The candidates of all kinds, those of each kind once."""
    return [candidate for unit in units if unit.kind == unit.block for candidate in unit.candidates]
