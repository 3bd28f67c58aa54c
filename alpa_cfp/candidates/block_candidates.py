"""Candidates: each kind of block under each of its strategies, as a program of its own (CFP, sections 4 and 5).

Takes the subprograms of a program's blocks and a mesh; gives for every kind of block one partitioned program a
strategy (`kind_candidates`). Invariants: blocks that are equal programs share their candidates, and candidates of a
kind are in the order of its strategies.
"""

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from alpa_cfp.analysis.blocks import ParallelBlock
from alpa_cfp.analysis.collection import without_collection
from alpa_cfp.candidates.candidate import Candidate
from alpa_cfp.candidates.kind_candidates import KindCandidates
from alpa_cfp.extraction.extractor import Extractor
from alpa_cfp.extraction.subprograms import BlockSubprograms
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy, strategies_of

# Those of the kinds of blocks that were seen, by what they depend on.
CandidateCache = MutableMapping[Any, KindCandidates]
# Gives those strategies of a kind of block, by its number, that candidates are for.
Strategies = Callable[[int, ParallelBlock], Sequence[BlockStrategy]]


@dataclass(frozen=True, slots=True)
class BlockCandidates:
    """A block of the program with its candidates.

    Attributes:
        block: Its index.
        kind: The index of the first block that is an equal program.
        inputs, outputs: The values at its boundary, in the order of the candidates' shardings.
        candidates: The candidates of its kind.
    """

    block: int
    kind: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    candidates: tuple[Candidate, ...]


@without_collection
def find_block_candidates(
    subprograms: BlockSubprograms,
    mesh: LogicalMesh,
    cache: CandidateCache | None = None,
    tell: Callable[[ParallelBlock, Sequence[Candidate]], None] = lambda block, candidates: None,
    strategies: Strategies | None = None,
    *,
    split_sums: bool = False,
) -> tuple[BlockCandidates, ...]:
    """Returns the candidates of each block of a program.

    Args:
        subprograms: The subprograms of its blocks.
        mesh: The logical mesh.
        cache: The kinds of blocks that were seen before, in this program or others; new ones are added.
        tell: Called with each kind of block and its candidates as soon as there are.
        strategies: Gives those of each kind of block that candidates are for, with `StateSharding.REPLICATED`, in the
            order of `strategies_of`; None for all.
        split_sums: Whether sums over devices may stay in parts.
    """
    cache = {} if cache is None else cache
    found: list[BlockCandidates] = []
    extractor = Extractor(subprograms.module, subprograms.blocks)
    for number, block in enumerate(subprograms.subprograms):
        spec, backward_inputs = block.spec, block.backward_inputs
        if block.kind == number:
            key = (block.digest, spec.aliases, spec.blocks, spec.ties, backward_inputs, mesh)
            key += (subprograms.module.combiner_limits,)
            if key not in cache:
                cache[key] = KindCandidates(extractor.extract(spec), backward_inputs, mesh)
            kind = cache[key]
            if strategies is None:
                chosen = strategies_of(kind.block, mesh.shape, split_sums=split_sums)
            else:
                chosen = strategies(number, kind.block)
            candidates = kind.of(chosen)
            tell(kind.block, candidates)
        else:
            candidates = found[block.kind].candidates
        found.append(BlockCandidates(number, block.kind, spec.inputs, spec.outputs, candidates))
    return tuple(found)


def distinct(block_candidates: Sequence[BlockCandidates]) -> list[Candidate]:
    """Returns the candidates of all kinds of blocks, each once."""
    return [candidate for each in block_candidates if each.kind == each.block for candidate in each.candidates]
