"""What a block holds in memory beside its arguments, by the lifetimes of its values.

Takes one device's program of a block, forward and backward, and which of its arguments come from the backward pass of
later blocks; gives the bytes that wait for the backward pass and the largest that come and go. What XLA rather computes
again is not kept. Invariant: no value is counted in both.
"""

from collections.abc import Collection

from alpa_cfp.costs.work import LocalProgram


def saved_and_transient(program: LocalProgram, late: Collection[int]) -> tuple[int, int]:
    """(bytes saved for the backward pass, largest bytes of what else is there at one time).

    Args:
        program: The program of a block.
        late: Numbers of the arguments that the backward pass brings; without any nothing is saved.
    """
    turn = min((program.users[value][0] for value in late if program.users[value]), default=len(program.ops))
    returned = set(program.returned)
    saved = {
        value
        for number, op in enumerate(program.ops[:turn])
        for value in op.results
        if value not in returned and _last_use(program, value) >= turn
    }
    there = set(range(program.arguments)) | returned
    for op in program.ops[:turn]:
        if op.is_cheap and there.issuperset(op.operands):
            there.update(op.results)
            saved.difference_update(op.results)
        else:
            there.update(saved.intersection(op.results))
    return sum(program.sizes[value] for value in saved), _peak(program, saved | returned)


def _last_use(program: LocalProgram, value: int) -> int:
    users = program.users[value]
    return users[-1] if users else -1


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
