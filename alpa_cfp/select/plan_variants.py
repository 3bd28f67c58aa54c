"""Plans like a given one, which a search that adds up blocks does not find by itself where many are nearly as fast.

Takes the candidates of each block and a plan; gives other plans. Invariant: they are plans of the same candidates.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from alpa_cfp.candidates.block_candidates import BlockCandidates
from alpa_cfp.select.candidate_costs import Choices
from alpa_cfp.strategies.block_strategy import StateSharding


def of_one_kind(blocks: Sequence[BlockCandidates], plan: Choices) -> Iterator[Choices]:
    """The plans that differ from a plan in one kind of block."""
    changes = {
        (block.kind, own, other)
        for block, own in zip(blocks, plan, strict=True)
        for other in range(len(block.candidates))
        if other != own
    }
    for kind, own, other in sorted(changes):
        yield tuple(
            other if (block.kind, choice) == (kind, own) else choice for block, choice in zip(blocks, plan, strict=True)
        )


def of_one_state_sharding(blocks: Sequence[BlockCandidates], plan: Choices) -> Iterator[Choices]:
    """The plans that split what a plan splits, with one state sharding for all blocks that can have it.

    What is the same for all blocks is communicated together. The search adds up blocks, of which each may be nearly as
    fast either way, so that it finds mixtures.
    """
    for sharding in StateSharding:
        choices = []
        for block, choice in zip(blocks, plan, strict=True):
            wanted = replace(block.candidates[choice].strategy, state_sharding=sharding)
            numbers = (number for number, each in enumerate(block.candidates) if each.strategy == wanted)
            choices.append(next(numbers, choice))
        yield tuple(choices)
