"""Makes one ParallelBlock of several whose contractions have a common operand and whose results one other block reads.

The gates of a recurrence each multiply the same input by a weight of their own, and add the products to those of the
state; no op joins them, since a sum belongs to the block of the state. Takes `PartialBlocks` to which nothing is added
any more, and merges those that leave one value each, which only members of one other block use. Factors that split the
common operand alike are one, and so are those whose results the other block needs split by one of its own. Invariant:
a merged block is split in every way in which each of its parts could be.
"""

from collections.abc import Mapping

from alpa_cfp.analysis.partial_block import PartialBlocks


def join_siblings(partial: PartialBlocks) -> None:
    """Merges such blocks, in place."""
    while _join_some(partial):
        pass


def _join_some(partial: PartialBlocks) -> bool:
    """Merges blocks, and says whether there were any; merged readers may make more of them siblings."""
    results = {block: own[0] for block, own in _left_by_members(partial).items() if len(own) == 1}
    of_reader: dict[int, list[int]] = {}
    has_joined = False
    for block, result in results.items():
        reader = _reader(partial, result)
        if reader is None:
            continue
        for first in of_reader.setdefault(reader, []):
            equal = _equal_factors(partial, block, first, reader, (result, results[first]))
            if equal is not None:
                for number, representative in equal.items():
                    partial.join_factors(number, representative)
                partial.merge(block, first)
                has_joined = True
                break
        else:
            of_reader[reader].append(block)
    return has_joined


def _left_by_members(partial: PartialBlocks) -> dict[int, list[int]]:
    """For each block the values that its members compute and other ops use, or the program returns; rematerialised
    values count as the originals.
    """
    found: dict[int, list[int]] = {}
    returned = set(partial.graph.results)
    for op in partial.graph.ops:
        number = partial.block_of_op[op.index]
        if number < 0 or partial.structure.original[op.index] != op.index:
            continue
        own = found.setdefault(partial.root(number), [])
        for result in op.results:
            users = partial.graph.users_through_barriers(result)
            if result in returned or any(_block_of(partial, user) != partial.root(number) for user in users):
                own.append(result)
    return found


def _reader(partial: PartialBlocks, value: int) -> int | None:
    """The one block whose members are all users of a value; None if there is none, or the program returns it."""
    blocks = {_block_of(partial, user) for user in partial.graph.users_through_barriers(value)}
    return blocks.pop() if len(blocks) == 1 and value not in partial.graph.results else None


def _block_of(partial: PartialBlocks, op: int) -> int | None:
    number = partial.block_of_op[op]
    return None if number < 0 else partial.root(number)


def _equal_factors(
    partial: PartialBlocks, block: int, other: int, reader: int, results: tuple[int, int]
) -> dict[int, int] | None:
    """For factors of a block those of another one that are the same once the two are one; None if they cannot be one.

    Args:
        partial: The blocks.
        block, other: The two.
        reader: The block that uses their results.
        results: The value that each of them leaves.
    """
    equal = partial.equal_factors(block, other)
    needs = partial.blocks[reader].needs
    if equal is None or any(value not in needs for value in results):
        return None
    own, its = (
        {
            partial.factor(needs[value][dim]): partial.factor(number)
            for dim, number in partial.dim_factors[value].items()
            if dim in needs[value]
        }
        for value in results
    )
    for needed in own.keys() & its.keys():
        if own[needed] != its[needed]:
            equal.setdefault(own[needed], its[needed])
    factors = partial.factors
    if any(factors[each].side is not factors[partial.factor(its_own)].side for each, its_own in equal.items()):
        return None
    split, its_split = (_split(partial, value, equal) for value in results)
    return equal if split == its_split and _need_alike(partial, block, other, equal) else None


def _split(partial: PartialBlocks, value: int, equal: Mapping[int, int]) -> set[tuple[int, int]]:
    """The usable factors that split a value, once these are equal, each with the most parts that it makes."""
    numbers = [partial.factor(number) for number in partial.dim_factors[value].values()]
    usable = [number for number in numbers if partial.factors[number].usable]
    return {(partial.factor(number, equal), partial.factors[number].max_shards) for number in usable}


def _need_alike(partial: PartialBlocks, block: int, other: int, equal: Mapping[int, int]) -> bool:
    """Whether two blocks need the values from outside that both use split alike, once these factors are equal."""
    own, its = partial.blocks[block].needs, partial.blocks[other].needs
    return all(
        {(dim, partial.factor(number, equal)) for dim, number in own[value].items()}
        == {(dim, partial.factor(number, equal)) for dim, number in its[value].items()}
        for value in own.keys() & its.keys()
    )
