"""Take out the constraints that jax puts on typed random keys when it lowers them: they name a mesh without axes."""

from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation

_KEYS_MESH = "empty_mesh"


def remove_key_constraints(module: Operation) -> None:
    """Let keys of `module` lie where the planner says, in place."""
    for function in mlir.functions(module).values():
        for op in list(mlir.walk(mlir.entry_block(function))):
            if op.name == "sdy.sharding_constraint" and _KEYS_MESH in str(op.attributes["sharding"]):
                op.results[0].replace_all_uses_with(op.operands[0])
                op.erase()
    for op in mlir.block_operations(module.body):
        if op.name == "sdy.mesh" and ir.StringAttr(op.attributes["sym_name"]).value == _KEYS_MESH:
            op.erase()
