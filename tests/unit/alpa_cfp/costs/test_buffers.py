"""Which values have buffers: what XLA fuses into the ops that use it has none."""

from alpa_cfp.costs.buffers import find_buffers
from alpa_cfp.costs.work import LocalOp

DOT, TANH, ADD, CONVERT, RESHAPE, REDUCE = (
    f"stablehlo.{name}" for name in ("dot_general", "tanh", "add", "convert", "reshape", "reduce")
)


def ops(*each: tuple[str, tuple[int, ...], int]) -> list[LocalOp]:
    return [LocalOp(name, operands, (result,)) for name, operands, result in each]


def test_a_value_that_is_computed_inside_its_users_is_read_from_what_it_is_computed_from() -> None:
    # h = x x; a sum of tanh h; y = x x; tanh h again, much later
    made = ops((DOT, (0, 0), 1), (TANH, (1,), 2), (REDUCE, (2,), 3), (DOT, (0, 0), 4), (ADD, (2, 4), 5))
    buffers = find_buffers(made, (10,) * 6, [0], [5])
    assert buffers.sources[2] == {1}
    assert buffers.last_use[1] == 4


def test_a_value_that_a_product_reads_has_a_buffer_and_its_views_share_it() -> None:
    buffers = find_buffers(ops((TANH, (0,), 1), (RESHAPE, (1,), 2), (DOT, (2, 2), 3)), (10,) * 4, [0], [3])
    assert buffers.sources[1] == buffers.sources[2] == {1}
    assert buffers.last_use[1] == 2


def test_a_sum_that_several_ops_use_has_a_buffer_rather_than_its_terms() -> None:
    made = ops((DOT, (0, 0), 1), (DOT, (0, 0), 2), (ADD, (1, 2), 3), (REDUCE, (3,), 4), (TANH, (3,), 5))
    buffers = find_buffers(made, (10,) * 6, [0], [4, 5])
    assert buffers.sources[3] == {3}
    assert buffers.last_use[1] == buffers.last_use[2] == 2


def test_a_buffer_has_a_value_as_it_was_before_it_was_converted_to_a_wider_type() -> None:
    made = ops(
        (DOT, (0, 0), 1), (DOT, (0, 0), 2), (ADD, (1, 2), 3), (CONVERT, (3,), 4), (REDUCE, (4,), 5), (TANH, (4,), 6)
    )
    buffers = find_buffers(made, (10, 10, 10, 10, 20, 1, 20), [0], [5, 6])
    assert buffers.sources[4] == {4}
    assert buffers.sizes[4] == 10


def test_a_value_whose_sources_nobody_else_counts_has_a_buffer() -> None:
    made = ops((DOT, (0, 0), 1), (TANH, (1,), 2), (TANH, (2,), 3))
    assert find_buffers(made, (10,) * 4, [0], [3]).sources[2] == {1}
    assert find_buffers(made, (10,) * 4, [0], [3], lambda value, read: value == 2).sources[2] == {2}
