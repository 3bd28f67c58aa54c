"""What the region of an op that reduces or sums applies to two values.

Takes an operation with one region of two arguments; gives the name of the binary op. Invariant: a name is given only
where the region does nothing else.
"""

from alpa_on_jax.xla_extension import mlir
from alpa_on_jax.xla_extension.mlir import Operation

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
