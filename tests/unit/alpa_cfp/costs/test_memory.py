"""What a block holds in memory: what waits for the backward pass, and the most that comes and goes."""

from alpa_cfp.costs import BlockMemory, LocalOp, LocalProgram, memory_of

DOT, TANH, ADD, SUM = (f"stablehlo.{name}" for name in ("dot_general", "tanh", "add", "all_reduce"))


def program(*ops: tuple[str, tuple[int, ...]], arguments: int, returned: tuple[int, ...], size: int = 10):
    """Ops of one result each, of which every value has `size` bytes."""
    made = tuple(LocalOp(name, operands, (arguments + i,)) for i, (name, operands) in enumerate(ops))
    return LocalProgram(arguments, made, (size,) * (arguments + len(ops)), returned)


def test_a_result_of_the_forward_pass_that_the_backward_pass_uses_is_saved() -> None:
    # x, w, cotangent; h = x w; y = h x; dw = h cotangent
    made = program((DOT, (0, 1)), (DOT, (3, 0)), (DOT, (3, 2)), arguments=3, returned=(4, 5))
    assert memory_of(made, {2}).saved_bytes == 10


def test_what_is_returned_in_place_of_an_argument_or_to_later_blocks_is_counted_where_it_goes() -> None:
    # Of h and dw only the cotangent is left, which comes from the backward pass and is freed.
    made = program((DOT, (0, 1)), (DOT, (3, 2)), arguments=3, returned=(3, 4))
    assert memory_of(made, {2}, in_place=[1]) == BlockMemory(0, 0, 10)


def test_a_gradient_for_other_blocks_comes_and_goes() -> None:
    made = program((DOT, (0, 1)), (DOT, (3, 2)), arguments=3, returned=(3, 4))
    assert memory_of(made, {2}) == BlockMemory(0, 0, 20)


def test_what_is_computed_inside_the_ops_that_use_it_is_not_saved() -> None:
    made = program((TANH, (0,)), (DOT, (0, 1)), (TANH, (2,)), (ADD, (3, 2)), arguments=3, returned=(4, 6))
    assert memory_of(made, {2}).saved_bytes == 0


def test_what_products_of_both_passes_read_is_saved() -> None:
    made = program((TANH, (0,)), (ADD, (3, 3)), (DOT, (4, 1)), (DOT, (4, 2)), arguments=3, returned=(5, 6))
    assert memory_of(made, {2}).saved_bytes == 10


def test_a_sum_over_a_copy_is_made_in_its_place() -> None:
    # The sums of both operands, in the buffers of these.
    ops = (
        LocalOp(DOT, (0, 0), (1,)),
        LocalOp(DOT, (1, 0), (2,)),
        LocalOp(SUM, (1, 2), (3, 4)),
        LocalOp(DOT, (3, 4), (5,)),
    )
    assert memory_of(LocalProgram(1, ops, (10,) * 6, (5,)), ()).transient_bytes == 20


def test_without_a_backward_pass_nothing_is_saved() -> None:
    made = program((DOT, (0, 1)), (DOT, (2, 1)), (DOT, (2, 3)), arguments=2, returned=(4,))
    assert memory_of(made, ()) == BlockMemory(0, 0, 20)


def test_a_value_is_there_until_its_last_use() -> None:
    made = program((DOT, (0, 0)), (DOT, (1, 1)), (DOT, (2, 2)), (DOT, (3, 3)), arguments=1, returned=(4,))
    # Each is there while the next one is made, and no longer.
    assert memory_of(made, ()) == BlockMemory(0, 0, 20)


def test_what_is_computed_again_is_not_saved() -> None:
    # x, w, cotangent, x behind the barrier; h = x w; y = h x; again h; dw = h cotangent
    made = program((DOT, (0, 1)), (DOT, (4, 0)), (DOT, (3, 1)), (DOT, (6, 2)), arguments=4, returned=(5, 7))
    assert memory_of(made, {2}, {3}, [1]) == BlockMemory(saved_bytes=0, repeated_bytes=10, transient_bytes=10)


def test_what_the_forward_pass_has_and_nothing_computes_again_is_saved() -> None:
    made = program((DOT, (0, 1)), (DOT, (4, 0)), (DOT, (3, 4)), (DOT, (6, 2)), arguments=4, returned=(5, 7))
    assert memory_of(made, {2}, {3}, [1]) == BlockMemory(saved_bytes=10, repeated_bytes=10, transient_bytes=10)


def with_one_sum(*, is_late: bool) -> LocalProgram:
    """x, w, cotangent; sums of h = x w and of dw = x cotangent, as one or each by itself; y = (sum of h) w."""
    h, dw = LocalOp(DOT, (0, 1), (3,)), LocalOp(DOT, (0, 2), (4,))
    first, both, last = (LocalOp(SUM, *each) for each in (((3,), (5,)), ((4, 3), (6, 5)), ((4,), (6,))))
    y = LocalOp(DOT, (5, 1), (7,))
    return LocalProgram(3, (h, dw, both, y) if is_late else (h, first, y, dw, last), (10,) * 8, (6, 7))


def test_a_sum_of_the_forward_pass_does_not_wait_for_the_backward_pass() -> None:
    assert memory_of(with_one_sum(is_late=True), {2}) == memory_of(with_one_sum(is_late=False), {2})


def test_what_waits_for_a_sum_of_the_forward_pass_is_of_the_forward_pass() -> None:
    # x, w, cotangent; h = x w, its sum with that of dw = x cotangent; k = h w; y = k w; dv = k cotangent
    ops = (
        LocalOp(DOT, (0, 1), (3,)),
        LocalOp(DOT, (0, 2), (4,)),
        LocalOp(SUM, (3, 4), (5, 6)),
        *(LocalOp(DOT, operands, (7 + i,)) for i, operands in enumerate(((5, 1), (7, 1), (7, 2)))),
    )
    made = LocalProgram(3, ops, (10,) * 10, (6, 8, 9))
    assert memory_of(made, {2}).saved_bytes == 10
