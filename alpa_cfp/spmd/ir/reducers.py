"""What the region of an op that reduces or sums applies to two values.

Takes an operation with one region of two arguments; gives the name of the binary op. Invariant: a name is given only
where the region does nothing else.
"""

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value

# Those that collectives make of numbers and of booleans, on CPUs and GPUs: XLA's `MatchReductionComputation`. A
# backend makes a minimum or maximum of "and" and "or", which is right for booleans only.
_REDUCERS = frozenset({"add", "maximum", "minimum", "and", "or", "multiply"})


def region_reducer(op: Operation) -> str | None:
    """The name of the one binary op that the region of `op` applies to its two arguments, or None."""
    block = op.regions[0].blocks[0]
    operations = mlir.block_operations(block)
    if len(operations) != 2 or set(operations[0].operands) != set(block.arguments):
        return None
    if list(operations[1].operands) != list(operations[0].results):
        return None
    dialect, name = operations[0].name.split(".", 1)
    return name if dialect == "stablehlo" and name in _REDUCERS else None


def is_made_over_devices(op: Operation) -> bool:
    """Whether a `stablehlo.reduce` may be given parts of the reduced dims: a collective then reduces the results.

    Of a reduction of several arrays that selects (an argmax) the devices' results are gathered, and reduced again.
    """
    if len(op.results) > 1:
        return _selects(op)
    reducer = region_reducer(op)
    return reducer is not None and (_is_flag(op.operands[0]) or reducer not in ("and", "or"))


def _selects(op: Operation) -> bool:
    """Whether the region of `op` only picks one of its arguments, as that of an argmax does.

    Then it changes nothing that the initial values come in once on every device and once more behind them.
    """
    *body, _ = mlir.block_operations(op.regions[0].blocks[0])
    return all(
        inner.name in ("stablehlo.compare", "stablehlo.select")
        or (inner.name in ("stablehlo.and", "stablehlo.or") and _is_flag(inner.results[0]))
        for inner in body
    )


def _is_flag(value: Value) -> bool:
    return str(mlir.tensor_type(value).element_type) == "i1"
