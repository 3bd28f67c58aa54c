"""Shardings that a program asks for: of values between its ops, of its arguments and of its results.

Takes a parsed module as JAX lowers it, where `sdy.sharding_constraint` ops name the axes of the user's mesh; gives one
whose constraints name the axes of the logical mesh, and puts further constraints behind arguments and before results.
A constraint is an op of the program like any other: blocks contain it, and what it costs is a part of what they cost.
Invariants: the module computes the same values; every constraint divides its array.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.shardings.annotations import declare_mesh, set_boundary
from alpa_cfp.spmd.shardings.sharding import Axis, LogicalMesh, axes_text
from alpa_cfp.spmd.shardings.user_axes import Dims, UserAxes

CONSTRAINT = "sdy.sharding_constraint"
_ATTRIBUTE = "sharding"
_OP_NAME = re.compile(r'loc\("([^"]*)"')
_RESHARD, _TRANSPOSED = "reshard", "transpose("
# The scope of a `reshard` that nobody has written.
DERIVED = "derived"
_WRITTEN = frozenset({_RESHARD, "sharding_constraint"})


@dataclass(frozen=True, slots=True)
class Constraint:
    """What is asked of the sharding of one array.

    Attributes:
        dims: For each dim the mesh axes that split it, major to minor; None where that is free.
    """

    dims: Dims

    def dividing(self, shape: Sequence[int]) -> "Constraint":
        """The same without the dims that cannot be split so evenly; these are whole."""
        sizes = zip(self.dims, shape, strict=True)
        return Constraint(tuple(axes if axes is None or size % _parts(axes) == 0 else () for axes, size in sizes))

    def of_rank(self, rank: int) -> "Constraint":
        """The same of an array with more dims, which are whole: the bits of random keys."""
        return Constraint((*self.dims, *[()] * (rank - len(self.dims))))

    def text(self, mesh: LogicalMesh) -> str:
        """Shardy's attribute; free dims are open."""
        dims = ("{?}" if axes is None else axes_text(mesh, axes) for axes in self.dims)
        return f"#sdy.sharding<@{mlir.MESH_SYMBOL}, [{', '.join(dims)}]>"


def names_a_mesh(module: Any) -> bool:
    """Whether `module` says anything of a mesh."""
    return any(op.name == "sdy.mesh" for op in mlir.block_operations(module.body))


def use_logical_mesh(module: Any, axes: UserAxes) -> int:
    """Make the constraints of `module` name the axes of a logical mesh, and declare that mesh, in place.

    Args:
        module: The module, as JAX lowers it.
        axes: How it names these axes.

    Returns:
        The number of constraints that cannot be kept as they are: their arrays have dims that cannot be split so.

    Raises:
        ForeignMeshError: a constraint is for another mesh.
    """
    uneven = 0
    for op in mlir.all_operations(module):
        if op.name != CONSTRAINT:
            continue
        (dims,) = axes.read(op.attributes[_ATTRIBUTE])
        asked = Constraint(dims)
        even = asked.dividing(mlir.tensor_shape(op.results[0]))
        uneven += even != asked
        op.attributes[_ATTRIBUTE] = mlir.attribute(even.text(axes.mesh))
    main = mlir.main_function(module)
    arguments, results = (len(values) for values in (mlir.entry_block(main).arguments, mlir.terminator(main).operands))
    set_boundary(main, [None] * arguments, [None] * results)
    declare_mesh(module, axes.mesh)
    return uneven


def constrain_boundary(
    main: Operation, mesh: LogicalMesh, inputs: Mapping[int, Constraint], outputs: Mapping[int, Constraint]
) -> None:
    """Put a constraint behind each argument and before each result of a function that has one, by number."""
    block = mlir.entry_block(main)
    with ir.InsertionPoint.at_block_begin(block), main.location:
        for number, asked in inputs.items():
            argument = block.arguments[number]
            constrained = _constrained(argument, asked, mesh)
            argument.replace_all_uses_except(constrained, mlir.defining_op(constrained))
    end = mlir.terminator(main)
    with ir.InsertionPoint(end), main.location:
        for number, asked in outputs.items():
            end.operands[number] = _constrained(end.operands[number], asked, mesh)


def drop_derived(module: Any) -> None:
    """Take the constraints out of `module` that JAX adds to each op in Explicit mode; those that were written stay.

    There every array has a sharding, which JAX derives from those of operands and writes behind each op. Written are
    `reshard` and `with_sharding_constraint`, which give their names to the op; what differentiation adds to a `reshard`
    only takes a gradient back to where the derived sharding of its primal is.
    """
    for op in mlir.all_operations(module):
        if op.name != CONSTRAINT:
            continue
        found = _OP_NAME.match(str(op.location))
        name = found[1] if found else ""
        *scopes, primitive = name.split("/")
        is_derived = primitive == _RESHARD and (_TRANSPOSED in name or DERIVED in scopes)
        if primitive not in _WRITTEN or is_derived:
            mlir.replace(op, op.operands[0])


def drop_constraints(module: Any, op_names: Collection[str]) -> int:
    """Take the constraints inside ops of these kinds out of `module`, such as loops; gives their number."""
    found = [
        inner
        for op in mlir.all_operations(module)
        if op.name in op_names
        for inner in mlir.inner_operations(op)
        if inner.name == CONSTRAINT
    ]
    distinct = list(dict.fromkeys(found))
    for op in distinct:
        mlir.replace(op, op.operands[0])
    return len(distinct)


def copy_mesh(source: Any, target: Any) -> None:
    """Declare in the module `target` the mesh that `source` declares, if it does: constraints name it."""
    for op in mlir.block_operations(source.body):
        if op.name == "sdy.mesh":
            with ir.InsertionPoint.at_block_begin(target.body):
                op.clone()


def _constrained(value: Value, asked: Constraint, mesh: LogicalMesh) -> Value:
    attributes = {_ATTRIBUTE: mlir.attribute(asked.text(mesh))}
    return mlir.create(CONSTRAINT, [value.type], [value], attributes).results[0]


def _parts(axes: Sequence[Axis]) -> int:
    return math.prod(axis.size for axis in axes)
