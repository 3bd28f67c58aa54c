"""Parts of a program that are written for each device (`jax.shard_map`): islands in what is planned.

Takes a parsed module as JAX lowers it, with an `sdy.manual_computation` for each; gives one in which these name the
axes of the logical mesh, and constraints bring their operands to where they are asked for. Nothing is planned inside an
island. Invariant: each device computes what it would; along an axis that an island does not name, every device computes
the same.
"""

from typing import Any

import numpy as np
from jaxlib.mlir import ir

from alpa_cfp.spmd.errors import NestedIslandError
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation
from alpa_cfp.spmd.shardings.constraints import CONSTRAINT
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from alpa_cfp.spmd.shardings.user_axes import UserAxes

ISLAND = "sdy.manual_computation"
_IN, _OUT, _MANUAL = "in_shardings", "out_shardings", "manual_axes"
_GROUPS = "replica_groups"


def use_logical_mesh(module: Any, axes: UserAxes) -> None:
    """Make the islands of `module` name the axes of a logical mesh, in place.

    Args:
        module: The module.
        axes: How the program names these axes.

    Raises:
        ForeignMeshError: an island is for another mesh.
    """
    manual = mlir.attribute("#sdy<manual_axes{" + ", ".join(f'"{name}"' for name in axes.mesh.axis_names) + "}>")
    for op in mlir.all_operations(module):
        if op.name != ISLAND:
            continue
        for inner in mlir.inner_operations(op):
            if _GROUPS in inner.attributes and (groups := axes.groups(inner.attributes[_GROUPS])) is not None:
                inner.attributes[_GROUPS] = mlir.dense(np.array(groups, np.int64))
        inputs, outputs = (_closed(axes, op.attributes[name]) for name in (_IN, _OUT))
        op.attributes[_IN], op.attributes[_OUT], op.attributes[_MANUAL] = _text(inputs), _text(outputs), manual
        with ir.InsertionPoint(op), op.location:
            for position, sharding in enumerate(inputs):
                operand, attributes = op.operands[position], {"sharding": mlir.attribute(sharding.to_sdy())}
                op.operands[position] = mlir.create(CONSTRAINT, [operand.type], [operand], attributes).results[0]


def operand_shardings(island: Operation, mesh: LogicalMesh) -> list[ArraySharding]:
    """The shardings of the operands of an island that names the axes of `mesh`."""
    parts = str(island.attributes[_IN]).split("<@")[1:]
    pairs = zip(parts, island.operands, strict=True)
    return [ArraySharding.from_sdy(mesh, part, len(mlir.tensor_shape(value))) for part, value in pairs]


def drop_inner_constraints(module: Any) -> None:
    """Take the constraints out of islands: an axis that an island does not name is free in it, and not planned.

    Raises:
        NestedIslandError: an island is inside an island.
    """
    for island in [op for op in mlir.all_operations(module) if op.name == ISLAND]:
        for op in mlir.inner_operations(island):
            if op.name == ISLAND:
                raise NestedIslandError
            if op.name == CONSTRAINT:
                mlir.replace(op, op.operands[0])


def _closed(axes: UserAxes, attribute: Any) -> list[ArraySharding]:
    return [ArraySharding(axes.mesh, tuple(dim or () for dim in dims)) for dims in axes.read(attribute)]


def _text(shardings: list[ArraySharding]) -> Any:
    inner = ", ".join(sharding.to_sdy().removeprefix("#sdy.sharding") for sharding in shardings)
    return mlir.attribute(f"#sdy.sharding_per_value<[{inner}]>")
