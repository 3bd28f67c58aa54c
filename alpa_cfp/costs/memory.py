"""The memory of a block beside its arguments, from the lifetimes of its values.

Takes one device's program of a block, forward and backward, and its backward inputs: the arguments that come from the
backward pass of later blocks, and those that come from rematerialisation. Gives the bytes saved for the backward pass,
those rematerialised in it, and the peak of all others. What is computed inside the ops that use it has no
memory (`buffers`). Invariant: no value is counted twice.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from alpa_cfp.costs.buffers import Buffers, find_buffers
from alpa_cfp.costs.work import LocalOp, LocalProgram
from alpa_cfp.spmd.ir.op_kinds import ELEMENTWISE

# Ops whose result may take the buffer of an operand that nothing else needs.
_IN_PLACE = ELEMENTWISE | {"stablehlo.all_reduce"}


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


def memory_of(
    program: LocalProgram,
    late: Collection[int],
    repeated: Collection[int] = (),
    in_place: Collection[int] = (),
) -> BlockMemory:
    """The memory of a block.

    Args:
        program: The program of the block.
        late: Numbers of the arguments that come from the backward pass.
        repeated: Numbers of the arguments of rematerialisation: those that it computes from, or that it has computed
            elsewhere. Nothing is saved if both are empty.
        in_place: Numbers of the results that take the buffers of arguments.
    """
    program = _by_pass(program, late, repeated)
    backward_start = _first_use(program, late)
    repeat_start = min(backward_start, _first_use(program, repeated))
    backward = {value for op in program.ops[backward_start:] for value in op.results}
    # Gradients of what blocks hand on: nobody else counts them.
    gradients = backward.intersection(program.returned) - {program.returned[number] for number in in_place}
    held = set(program.returned) - gradients
    buffers = find_buffers(program.ops, program.sizes, range(program.arguments), held)
    elsewhere = set(range(program.arguments)) | held
    saved = _live_after(program, buffers, range(repeat_start), elsewhere)
    computed_again = _live_after(program, buffers, range(repeat_start, backward_start), elsewhere)
    to_end = frozenset[int]().union(*(buffers.sources[value] for value in gradients))
    return BlockMemory(
        sum(buffers.sizes[value] for value in saved),
        sum(buffers.sizes[value] for value in computed_again),
        _peak(program, buffers, saved | computed_again | elsewhere - {*late}, to_end, backward_start),
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


def _live_after(program: LocalProgram, buffers: Buffers, part: range, elsewhere: Collection[int]) -> set[int]:
    """The buffers written in a part of the program that are read after it, and are not counted elsewhere."""
    written = (value for op in program.ops[part.start : part.stop] for value in op.results)
    return {value for value in written if value not in elsewhere and buffers.last_use[value] >= part.stop}


def _peak(
    program: LocalProgram, buffers: Buffers, elsewhere: Collection[int], to_end: Collection[int], backward_start: int
) -> int:
    """The most bytes that are live at once, of buffers that are not counted elsewhere.

    Args:
        program: The program.
        buffers: Its buffers.
        elsewhere: Those that are counted elsewhere.
        to_end: Those that are needed behind the program.
        backward_start: The op with which the arguments come that are not counted elsewhere.
    """
    ends: dict[int, list[int]] = {}
    sizes = buffers.sizes

    def begin(values: Sequence[int], first: int) -> int:
        for value in values:
            last = len(program.ops) if value in to_end else buffers.last_use[value]
            ends.setdefault(max(first, last), []).append(value)
        return sum(sizes[value] for value in values)

    given = [value for value in range(program.arguments) if value not in elsewhere and program.users[value]]
    alive = peak = 0
    for number, op in enumerate(program.ops):
        alive += begin(given, number) if number == backward_start else 0
        written = [value for value in op.results if value not in elsewhere and buffers.sources[value] == {value}]
        replaced = Counter[int]()
        if op.name in _IN_PLACE:
            replaced = Counter(sizes[value] for value in written) & Counter(sizes[v] for v in ends.get(number, ()))
        alive += begin(written, number)
        peak = max(peak, alive - sum(replaced.elements()))
        alive -= sum(sizes[value] for value in ends.pop(number, ()))
    return peak
