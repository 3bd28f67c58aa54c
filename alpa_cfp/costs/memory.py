"""The memory of a block beside its arguments, from the lifetimes of its values.

Takes one device's program of a block, forward and backward, and its backward inputs: the arguments that come from the
backward pass of later blocks, and those that come from rematerialisation. Gives the bytes saved for the backward pass,
those rematerialised in it, and the peak of all others. Values that XLA recomputes rather than saves do not count.
Invariant: no value is counted twice.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from alpa_cfp.costs.work import LocalOp, LocalProgram


@dataclass(frozen=True, slots=True)
class BlockMemory:
    """Bytes that a device holds for a block.

    Attributes:
        saved_bytes: Values held from the forward pass to the backward pass.
        repeated_bytes: Values computed again in the backward pass, held until the gradients need them.
        transient_bytes: The peak of all other values.
    """

    saved_bytes: int
    repeated_bytes: int
    transient_bytes: int


def memory_of(program: LocalProgram, late: Collection[int], repeated: Collection[int] = ()) -> BlockMemory:
    """The memory of a block.

    Args:
        program: The program of the block.
        late: Numbers of the arguments that come from the backward pass.
        repeated: Numbers of the arguments of rematerialisation: those that it computes from, or that it has computed
            elsewhere. Nothing is saved if both are empty.
    """
    program = _by_pass(program, late, repeated)
    backward_start = _first_use(program, late)
    repeat_start = min(backward_start, _first_use(program, repeated))
    returned = set(program.returned)
    available = set(range(program.arguments)) | returned
    saved = _live_after(program, range(repeat_start), available)
    computed_again = _live_after(program, range(repeat_start, backward_start), available)
    return BlockMemory(
        sum(program.sizes[value] for value in saved),
        sum(program.sizes[value] for value in computed_again),
        _peak(program, saved | computed_again | returned),
    )


def _by_pass(program: LocalProgram, late: Collection[int], repeated: Collection[int]) -> LocalProgram:
    """The program with a separate all-reduce for each pass, and the ops that depend on one as early as possible.

    In the program of a block alone, all-reduces of the forward pass are combined with those of the backward pass, or
    with rematerialised ones. In the whole program they are not, since other blocks come in between.
    """
    # For each value its pass: 0 forward, 1 rematerialisation, 2 backward.
    passes = [0] * len(program.sizes)
    passes[: program.arguments] = (2 if i in late else int(i in repeated) for i in range(program.arguments))
    # For each value the op that it follows, and whether it was moved before its own op.
    behind, moved = [-1] * len(program.sizes), [False] * len(program.sizes)
    placed: list[tuple[int, int, LocalOp]] = []
    for number, op in enumerate(program.ops):
        last = max((passes[value] for value in op.operands), default=0)
        for part in _split_by_pass(op, passes):
            own = max((passes[value] for value in part.operands), default=0)
            is_moved = own < last or (own < 2 and any(moved[value] for value in part.operands))
            place = max((behind[value] for value in part.operands), default=-1) if is_moved else number
            for value in part.results:
                passes[value], behind[value], moved[value] = own, place, is_moved
            placed.append((place, number, part))
    return replace(program, ops=tuple(op for _, _, op in sorted(placed, key=lambda each: each[:2])))


def _split_by_pass(op: LocalOp, passes: Sequence[int]) -> list[LocalOp]:
    """A combined all-reduce as one for each pass; any other op unchanged."""
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


def _live_after(program: LocalProgram, part: range, available: set[int]) -> set[int]:
    """The values made in a part of the program that are held for the ops after it.

    Args:
        program: The program.
        part: The part's ops.
        available: The values that are held in any case. The values that are held for the ops after the part, and those
            that are cheap to compute from available ones, are added.
    """
    live = {
        value
        for op in program.ops[part.start : part.stop]
        for value in op.results
        if value not in available and _last_use(program, value) >= part.stop
    }
    for op in program.ops[part.start : part.stop]:
        if op.is_cheap and available.issuperset(op.operands):
            available.update(op.results)
            live.difference_update(op.results)
        else:
            available.update(live.intersection(op.results))
    return live


def _peak(program: LocalProgram, elsewhere: Collection[int]) -> int:
    """The most bytes that are live at once, of values that are neither arguments nor counted elsewhere."""
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
