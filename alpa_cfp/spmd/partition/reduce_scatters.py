"""Sum and split in one communication: an all-reduce of which each device keeps a part becomes a reduce-scatter.

Works on the global program with Shardy's collectives, where an `sdy.all_slice` follows an `sdy.all_reduce`; Shardy has
no pass for it in jaxlib 0.10.2 and 0.11.2. Alpa's pass GenerateReduceScatter decides where gradients are kept in parts
(ZeRO); this makes the communication that it intends. Invariant: every value of the program stays the same up to
rounding.
"""

from collections.abc import Sequence

from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.op_kinds import ELEMENTWISE
from alpa_cfp.spmd.partition.partial_flow import DEFERRED
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis, LogicalMesh, joined, parse_axis_lists

Split = tuple[tuple[Axis, ...], ...]


def make_reduce_scatters(main: Operation, mesh: LogicalMesh) -> int:
    """Put reduce-scatters in place of all-reduces in `main` and return how many there are.

    Where only some of the axes that are summed over split the result, an all-reduce over the others follows, of the
    part; where the result is split along more axes, a slice.
    """
    count = 0
    for op in mlir.block_operations(mlir.entry_block(main)):
        if op.name != "sdy.all_slice":
            continue
        moves = _moves_behind(op)
        total = mlir.defining_op(moves[-1].operands[0] if moves else op.operands[0])
        if total is None or not _is_free_sum(total):
            continue
        split = parse_axis_lists(mesh, str(op.attributes["slicing_axes"]))
        for move in moves:
            split = _before(move, split)
        summed = annotations.axes_attribute(total, "reduction_axes", mesh)
        if not any(scattered := _scattered(mesh, split, summed)):
            continue
        part = _reduce_scatter(mesh, total, scattered, split, summed)
        _slice_moves(mesh, moves[::-1], part)
        op.results[0].replace_all_uses_with(moves[0].results[0] if moves else part)
        for old in (op, total):
            old.erase()
        count += 1
    return count


def _moves_behind(op: Operation) -> list[Operation]:
    """The ops between a sum and the slice `op`, last one first, that can as well work on the parts of their operand."""
    moves = []
    while (move := mlir.defining_op(op.operands[0])) is not None and len(mlir.users(move.results[0])) == 1:
        if move.name != "stablehlo.transpose" and not (move.name in ELEMENTWISE and len(move.operands) == 1):
            break
        moves.append(move)
        op = move
    return moves


def _is_free_sum(op: Operation) -> bool:
    """Whether `op` is a sum over devices that nothing else uses and that is made here."""
    return op.name == "sdy.all_reduce" and DEFERRED not in op.attributes and len(mlir.users(op.results[0])) == 1


def _before(move: Operation, split: Split) -> Split:
    """The split of the operand of `move` with which its result is split as `split`."""
    if move.name != "stablehlo.transpose":
        return split
    operand: list[tuple[Axis, ...]] = [()] * len(split)
    for dim, source in enumerate(mlir.int_array(move, "permutation")):
        operand[source] = split[dim]
    return tuple(operand)


def _scattered(mesh: LogicalMesh, split: Split, summed: Sequence[Axis]) -> Split:
    """Of the axes that split each dim, the first ones that are also summed over."""
    others = mesh.remaining(summed)

    def first(axes: Sequence[Axis]) -> tuple[Axis, ...]:
        count = next((i for i, axis in enumerate(axes) if any(axis.overlaps(o) for o in others)), len(axes))
        return tuple(axes[:count])

    return tuple(map(first, split))


def _reduce_scatter(
    mesh: LogicalMesh, total: Operation, scattered: Split, split: Split, summed: Sequence[Axis]
) -> Value:
    """The parts `split` of the sum `total`, made before it."""
    (value,) = total.operands
    sharding = annotations.result_shardings(total, mesh)[0]
    rest = mesh.remaining([*mesh.remaining(summed), *(axis for axes in scattered for axis in axes)])
    sliced = tuple(axes[len(taken) :] for axes, taken in zip(split, scattered, strict=True))
    steps = (
        ("sdy.reduce_scatter", "reduce_scatter_axes", scattered),
        ("sdy.all_reduce", "reduction_axes", (rest,)),
        ("sdy.all_slice", "slicing_axes", sliced),
    )
    with ir.InsertionPoint(total), total.location:
        for name, attribute, axes in steps:
            if not any(axes):
                continue
            if name == "sdy.all_reduce":
                along = annotations.axis_list(mesh, axes[0])
            else:
                sharding = ArraySharding(
                    mesh, tuple(joined((*own, *more)) for own, more in zip(sharding.dims, axes, strict=True))
                )
                along = mlir.attribute(f"#sdy<list_of_axis_ref_lists{_lists_text(mesh, axes)}>")
            attributes = {attribute: along, "out_sharding": mlir.attribute(sharding.to_sdy())}
            value = mlir.create(name, [value.type], [value], attributes).results[0]
    return value


def _lists_text(mesh: LogicalMesh, lists: Sequence[Sequence[Axis]]) -> str:
    """Shardy's text of lists of axes, such as `[{"x"}, {}]`."""
    text = ArraySharding(mesh, tuple(map(tuple, lists))).to_sdy()
    return text[text.index("[") : text.rindex("]") + 1]


def _slice_moves(mesh: LogicalMesh, moves: Sequence[Operation], part: Value) -> None:
    """Let `moves`, in order, work on a part of a sum."""
    sharding = annotations.result_shardings(mlir.defining_op(part), mesh)[0]
    for i, move in enumerate(moves):
        if i == 0:
            move.operands[0] = part
        if move.name == "stablehlo.transpose":
            permutation = mlir.int_array(move, "permutation")
            sharding = ArraySharding(mesh, tuple(sharding.dims[dim] for dim in permutation))
        annotations.set_result_shardings(move, [sharding])
