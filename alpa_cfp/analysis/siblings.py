"""Makes one ParallelBlock of several whose contractions read one value and whose results only one other block reads.

The gates of a recurrence each multiply the same input by a weight of their own, and add the products to those of the
state; no op joins them, since a sum belongs to the block of the state. Takes `PartialBlocks` to which nothing is added
any more, and merges some. Factors that split the shared value alike are one, and so are those whose results the other
block needs split by one of its own. Invariant: merged blocks are split in no way in which each of them could not be.
"""

from collections.abc import Mapping

from alpa_cfp.analysis.partial_block import PartialBlocks


def join_siblings(partial: PartialBlocks) -> None:
    """Merges such blocks, in place."""
    of_reader: dict[int, list[int]] = {}
    results = _left_by_members(partial)
    readers = {block: _reader(partial, own[0]) for block, own in results.items() if len(own) == 1}
    for block, reader in readers.items():
        if reader is None:
            continue
        for first in of_reader.setdefault(reader, []):
            equal = _equal_factors(partial, block, first, reader, (results[block][0], results[first][0]))
            if equal is not None:
                for number, representative in equal.items():
                    partial.join_factors(number, representative)
                partial.merge(block, first)
                break
        else:
            of_reader[reader].append(block)


def _left_by_members(partial: PartialBlocks) -> dict[int, list[int]]:
    """For each block the values that its members compute and other ops use, or the program returns."""
    found: dict[int, list[int]] = {}
    returned = set(partial.graph.results)
    for op in partial.graph.ops:
        number = partial.block_of_op[op.index]
        if number < 0:
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
    """For factors of a block those of another one that are the same then; None if some have no counterpart."""
    equal = partial.equal_factors(block, other)
    needs = partial.blocks[reader].needs
    if equal is None or any(value not in needs for value in results):
        return None
    own, its = (
        {
            partial.factor(needs[value][dim]): partial.factor(number)
            for dim, number in dims.items()
            if dim in needs[value]
        }
        for value, dims in ((value, partial.dim_factors[value]) for value in results)
    )
    for needed in own.keys() & its.keys():
        if own[needed] != its[needed]:
            equal.setdefault(own[needed], its[needed])
    for number, representative in equal.items():
        if partial.factors[number].side is not partial.factors[partial.factor(representative)].side:
            return None
    if not _need_alike(partial, block, other, equal):
        return None
    split = {partial.factor(number) for number in partial.dim_factors[results[0]].values()}
    known = {partial.factor(number) for number in equal}
    shared = {partial.factor(number) for number in partial.blocks[other].factors}
    usable = {number for number in split if partial.factors[number].usable}
    return equal if usable <= known | shared else None


def _need_alike(partial: PartialBlocks, block: int, other: int, equal: Mapping[int, int]) -> bool:
    """Whether two blocks need the values from outside that both use split alike, once these factors are equal."""
    own, its = partial.blocks[block].needs, partial.blocks[other].needs
    return all(
        {(dim, partial.factor(number, equal)) for dim, number in own[value].items()}
        == {(dim, partial.factor(number, equal)) for dim, number in its[value].items()}
        for value in own.keys() & its.keys()
    )
