"""A program in which parts of the forward pass are computed again in the backward pass.

Takes a module and the repeats of its units; gives a module that computes the same values and keeps less in between. The
ops of a repeat are cloned behind one barrier of what they are computed from and of a gradient, as JAX does it for
`jax.checkpoint`: the barrier is what keeps a compiler from merging the clones with the originals, and from computing
them before the backward pass has come there. Only the backward pass uses the clones. Invariants: parameters and results
are the same, bit for bit where the compiler orders sums alike; what was random is drawn from the same keys.
"""

from collections.abc import Sequence
from dataclasses import replace

from jaxlib.mlir import ir

from alpa_cfp.analysis.recomputation import Repeat
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.step_barriers import repeat_barrier
from alpa_cfp.spmd.module.hlo_module import HloModule


def with_repeats(module: HloModule, repeats: Sequence[Repeat]) -> HloModule:
    """Returns a copy of a module with repeats of its units.

    Args:
        module: An unoptimised module.
        repeats: One of each unit that is computed again; found in this very module.
    """
    if not repeats:
        return module

    def write(parsed: ir.Module) -> None:
        block = mlir.entry_block(mlir.main_function(parsed))
        operations = mlir.block_operations(block)
        values = [*block.arguments, *(result for op in operations for result in op.results)]
        for repeat in repeats:
            _write(repeat, operations, values)
        _move(repeats, operations)

    bytecode, _ = mlir.edit(module.bytecode, write)
    return replace(module, bytecode=bytecode)


def _write(repeat: Repeat, operations: Sequence[Operation], values: Sequence[Value]) -> None:
    """Puts the clones of a repeat before their first user, and lets the backward pass use them."""
    first_user = operations[repeat.first_user]
    with ir.InsertionPoint(first_user), first_user.location:
        guarded = [values[number] for number in (*repeat.inputs, repeat.gradient)]
        barrier = repeat_barrier(guarded)
        mapping = dict(zip(guarded, barrier.results, strict=True))
        gradient = {values[repeat.gradient]: mapping.pop(values[repeat.gradient])}
        clones = dict(mapping)
        for number in repeat.ops:
            mlir.clone_into(operations[number], clones)
    made = {old: new for old, new in clones.items() if old not in mapping}
    # A barrier of a value that nobody uses would be dropped: the first user takes the gradient from there, too.
    _use(first_user, made | gradient)
    late = {*repeat.moved, *range(repeat.first_user + 1, len(operations) - 1)}
    for number in sorted(late):
        _use(operations[number], made)


def _use(op: Operation, mapping: dict[Value, Value]) -> None:
    """Lets an op, and those inside it, take other operands."""
    for each in (op, *mlir.inner_operations(op)):
        for i, operand in enumerate(each.operands):
            if operand in mapping:
                each.operands[i] = mapping[operand]


def _move(repeats: Sequence[Repeat], operations: Sequence[Operation]) -> None:
    """Moves what needs a repeat behind it, in program order; what needs several, behind the last."""
    place: dict[int, int] = {}
    for repeat in repeats:
        for number in repeat.moved:
            place[number] = max(place.get(number, 0), repeat.first_user)
    for number in sorted(place):
        operations[number].move_before(operations[place[number]])
