"""What a block holds in memory: what waits for the backward pass, and the most that comes and goes."""

from alpa_cfp.costs import LocalOp, LocalProgram, saved_and_transient

DOT, TANH, ADD = "stablehlo.dot_general", "stablehlo.tanh", "stablehlo.add"


def program(*ops: tuple[str, tuple[int, ...]], arguments: int, returned: tuple[int, ...], size: int = 10):
    """Ops of one result each, of which every value has `size` bytes."""
    made = tuple(LocalOp(name, operands, (arguments + i,)) for i, (name, operands) in enumerate(ops))
    return LocalProgram(arguments, made, (size,) * (arguments + len(ops)), returned)


def test_a_result_of_the_forward_pass_that_the_backward_pass_uses_is_saved() -> None:
    # x, w, cotangent; h = x w; y = h x; dw = h cotangent
    made = program((DOT, (0, 1)), (DOT, (3, 0)), (DOT, (3, 2)), arguments=3, returned=(4, 5))
    assert saved_and_transient(made, {2})[0] == 10


def test_what_is_returned_is_counted_where_it_goes() -> None:
    made = program((DOT, (0, 1)), (DOT, (3, 2)), arguments=3, returned=(3, 4))
    assert saved_and_transient(made, {2}) == (0, 0)


def test_what_is_cheap_to_compute_again_from_what_is_there_is_not_saved() -> None:
    made = program((TANH, (0,)), (ADD, (3, 3)), (DOT, (4, 1)), (DOT, (4, 2)), arguments=3, returned=(5, 6))
    assert saved_and_transient(made, {2})[0] == 0


def test_without_a_backward_pass_nothing_is_saved() -> None:
    made = program((DOT, (0, 1)), (DOT, (2, 1)), (DOT, (2, 3)), arguments=2, returned=(4,))
    assert saved_and_transient(made, ()) == (0, 20)


def test_a_value_is_there_until_its_last_use() -> None:
    made = program((DOT, (0, 0)), (DOT, (1, 1)), (DOT, (2, 2)), (DOT, (3, 3)), arguments=1, returned=(4,))
    # Each is there while the next one is made, and no longer.
    assert saved_and_transient(made, ()) == (0, 20)
