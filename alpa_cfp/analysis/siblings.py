"""Makes one ParallelBlock of several whose contractions read one value and whose results only one other block reads.

The gates of a recurrence each multiply the same input by a weight of their own, and add the products to those of the
state; no op joins them, since a sum belongs to the block of the state. Takes a `BlockBuilder` that has run, and merges
blocks in it. Factors that split the shared value alike are one, and so are those whose results the other block needs
split by one of its own. Invariant: merged blocks are split in no way in which each of them could not be.
"""

from alpa_cfp.analysis.block_builder import BlockBuilder


def join_siblings(builder: BlockBuilder) -> None:
    """Merges such blocks, in place."""
    of_reader: dict[int, list[int]] = {}
    results = _left_by_members(builder)
    readers = {block: _reader(builder, own[0]) for block, own in results.items() if len(own) == 1}
    for block, reader in readers.items():
        if reader is None:
            continue
        for first in of_reader.setdefault(reader, []):
            equal = _equal_factors(builder, block, first, reader, (results[block][0], results[first][0]))
            if equal is not None:
                for number, representative in equal.items():
                    builder.join_factors(number, representative)
                builder.merge(block, first)
                break
        else:
            of_reader[reader].append(block)


def _left_by_members(builder: BlockBuilder) -> dict[int, list[int]]:
    """For each block the values that its members compute and other ops use, or the program returns."""
    found: dict[int, list[int]] = {}
    returned = set(builder.graph.results)
    for op in builder.graph.ops:
        number = builder.block_of_op[op.index]
        if number < 0:
            continue
        own = found.setdefault(builder.root(number), [])
        for result in op.results:
            users = builder.graph.users_through_barriers(result)
            if result in returned or any(_block_of(builder, user) != builder.root(number) for user in users):
                own.append(result)
    return found


def _reader(builder: BlockBuilder, value: int) -> int | None:
    """The one block whose members are all users of a value; None if there is none, or the program returns it."""
    blocks = {_block_of(builder, user) for user in builder.graph.users_through_barriers(value)}
    return blocks.pop() if len(blocks) == 1 and value not in builder.graph.results else None


def _block_of(builder: BlockBuilder, op: int) -> int | None:
    number = builder.block_of_op[op]
    return None if number < 0 else builder.root(number)


def _equal_factors(
    builder: BlockBuilder, block: int, other: int, reader: int, results: tuple[int, int]
) -> dict[int, int] | None:
    """For factors of a block those of another one that are the same then; None if some have no counterpart."""
    equal = builder.equal_factors(block, other)
    needs = builder.blocks[reader].needs
    if equal is None or any(value not in needs for value in results):
        return None
    own, its = (
        {
            builder.factor(needs[value][dim]): builder.factor(number)
            for dim, number in dims.items()
            if dim in needs[value]
        }
        for value, dims in ((value, builder.dim_factors[value]) for value in results)
    )
    for needed in own.keys() & its.keys():
        if own[needed] != its[needed]:
            equal.setdefault(own[needed], its[needed])
    for number, representative in equal.items():
        if builder.factors[number].side is not builder.factors[builder.factor(representative)].side:
            return None
    split = {builder.factor(number) for number in builder.dim_factors[results[0]].values()}
    known = {builder.factor(number) for number in equal}
    shared = {builder.factor(number) for number in builder.blocks[other].factors}
    usable = {number for number in split if builder.factors[number].usable}
    return equal if usable <= known | shared else None
