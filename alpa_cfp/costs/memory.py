"""What a block holds in memory beside its arguments, by the lifetimes of its values.

Takes one device's program of a block, forward and backward, and which of its arguments come from the backward pass of
later blocks, and which from what is computed again; gives the bytes that wait for the backward pass, those that are
computed again and wait for the rest of it, and the largest that come and go. What XLA rather computes again is not
kept. Invariant: no value is counted twice.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from alpa_cfp.costs.work import LocalOp, LocalProgram


@dataclass(frozen=True, slots=True)
class BlockMemory:
    """Bytes that a device holds for a block.

    Attributes:
        saved_bytes: From the forward pass to the backward pass.
        repeated_bytes: Computed again in the backward pass, until the gradients need it.
        transient_bytes: The most of all else that is there at one time.
    """

    saved_bytes: int
    repeated_bytes: int
    transient_bytes: int


def memory_of(program: LocalProgram, late: Collection[int], repeated: Collection[int] = ()) -> BlockMemory:
    """What a block holds.

    Args:
        program: The program of a block.
        late: Numbers of the arguments that the backward pass brings.
        repeated: Numbers of those from which it computes again, or that it has computed again elsewhere. Without any of
            either nothing is saved.
    """
    program = _in_time(program, late, repeated)
    turn = _first_use(program, late)
    again = min(turn, _first_use(program, repeated))
    returned = set(program.returned)
    there = set(range(program.arguments)) | returned
    saved = _kept(program, range(again), there)
    computed_again = _kept(program, range(again, turn), there)
    return BlockMemory(
        sum(program.sizes[value] for value in saved),
        sum(program.sizes[value] for value in computed_again),
        _peak(program, saved | computed_again | returned),
    )


def _in_time(program: LocalProgram, late: Collection[int], repeated: Collection[int]) -> LocalProgram:
    """The program with each pass' sums apart, and what waits for them where it is ready.

    Alone, a block has sums of its forward pass combined with those of its backward pass, or with the same computed
    again. In the whole program they do not wait for these: other blocks come in between.
    """
    # For each value which pass it is of: forward, repeated, late.
    passes = [0] * len(program.sizes)
    passes[: program.arguments] = (2 if i in late else int(i in repeated) for i in range(program.arguments))
    # For each value the op that it comes behind, and whether another op made it before.
    behind, moved = [-1] * len(program.sizes), [False] * len(program.sizes)
    placed: list[tuple[int, int, LocalOp]] = []
    for number, op in enumerate(program.ops):
        last = max((passes[value] for value in op.operands), default=0)
        for part in _of_passes(op, passes):
            own = max((passes[value] for value in part.operands), default=0)
            is_moved = own < last or (own < 2 and any(moved[value] for value in part.operands))
            place = max((behind[value] for value in part.operands), default=-1) if is_moved else number
            for value in part.results:
                passes[value], behind[value], moved[value] = own, place, is_moved
            placed.append((place, number, part))
    return replace(program, ops=tuple(op for _, _, op in sorted(placed, key=lambda each: each[:2])))


def _of_passes(op: LocalOp, passes: Sequence[int]) -> list[LocalOp]:
    """A combined sum taken apart into those of each pass; any other op as it is."""
    own = sorted({passes[value] for value in op.operands})
    if op.name != "stablehlo.all_reduce" or len(own) < 2:
        return [op]
    pairs = list(zip(op.operands, op.results, strict=True))
    of_pass = ([(old, new) for old, new in pairs if passes[old] == each] for each in own)
    return [LocalOp(op.name, tuple(old for old, _ in part), tuple(new for _, new in part)) for part in of_pass]


def _first_use(program: LocalProgram, arguments: Collection[int]) -> int:
    return min((program.users[value][0] for value in arguments if program.users[value]), default=len(program.ops))


def _last_use(program: LocalProgram, value: int) -> int:
    users = program.users[value]
    return users[-1] if users else -1


def _kept(program: LocalProgram, part: range, there: set[int]) -> set[int]:
    """The values made in a part of the program that must be kept for what comes after it.

    Args:
        program: The program.
        part: The part's ops.
        there: The values that are there anyway. Those that are kept, or cheap to compute from what is there, are added.
    """
    kept = {
        value
        for op in program.ops[part.start : part.stop]
        for value in op.results
        if value not in there and _last_use(program, value) >= part.stop
    }
    for op in program.ops[part.start : part.stop]:
        if op.is_cheap and there.issuperset(op.operands):
            there.update(op.results)
            kept.difference_update(op.results)
        else:
            there.update(kept.intersection(op.results))
    return kept


def _peak(program: LocalProgram, elsewhere: Collection[int]) -> int:
    """The most bytes that are alive at once, of what is neither an argument nor counted elsewhere."""
    ends: dict[int, list[int]] = {}
    alive = peak = 0
    for number, op in enumerate(program.ops):
        if not op.is_cheap:
            for value in op.results:
                if value not in elsewhere:
                    alive += program.sizes[value]
                    ends.setdefault(max(number, _last_use(program, value)), []).append(value)
        peak = max(peak, alive)
        alive -= sum(program.sizes[value] for value in ends.pop(number, ()))
    return peak
