"""Shardings that a program asks for: of values between its ops, of its arguments and of its results.

Takes a parsed module as JAX lowers it, where `sdy.sharding_constraint` ops name the axes of the user's mesh; gives one
whose constraints name the axes of the logical mesh, and puts further constraints behind arguments and before results.
A constraint is an op of the program like any other: blocks contain it, and what it costs is a part of what they cost.
Invariants: the module computes the same values; every constraint divides its array.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir

from alpa_cfp.spmd.errors import ForeignMeshError
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.shardings.annotations import declare_mesh, set_boundary
from alpa_cfp.spmd.shardings.sharding import Axis, LogicalMesh, axes_text

CONSTRAINT = "sdy.sharding_constraint"
_ATTRIBUTE = "sharding"
_SHARDING = re.compile(r"#sdy\.sharding<@([\w$.-]+), \[(.*?)\]")
_NAMED_MESH = re.compile(r'"([^"]*)"=(\d+)')
_DIM = re.compile(r"\{([^}]*)\}")
_OP_NAME = re.compile(r'loc\("([^"]*)"')
_RESHARD, _TRANSPOSED = "reshard", "transpose("
# The scope of a `reshard` that nobody has written.
DERIVED = "derived"
_WRITTEN = frozenset({_RESHARD, "sharding_constraint"})
_AXIS = re.compile(r'"([^"]*)"')


@dataclass(frozen=True, slots=True)
class Constraint:
    """What is asked of the sharding of one array.

    Attributes:
        dims: For each dim the mesh axes that split it, major to minor; None where that is free.
    """

    dims: tuple[tuple[Axis, ...] | None, ...]

    @property
    def is_free(self) -> bool:
        """Whether it asks for nothing."""
        return all(axes is None for axes in self.dims)

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


def use_logical_mesh(module: Any, mesh: LogicalMesh, axis_names: Sequence[str]) -> int:
    """Make the constraints of `module` name the axes of a logical mesh, in place.

    Args:
        module: The module, as JAX lowers it.
        mesh: The logical mesh.
        axis_names: The names of its axes in the program.

    Returns:
        The number of constraints that cannot be kept as they are: their arrays have dims that cannot be split so.

    Raises:
        ForeignMeshError: a constraint is for another mesh.
    """
    meshes = _declared_meshes(module)
    uneven = 0
    known = dict(zip(axis_names, enumerate(mesh.shape), strict=True))
    for op in mlir.all_operations(module):
        if op.name != CONSTRAINT:
            continue
        symbol, dims = _read(op)
        named = meshes.get(symbol, {})
        if named != {name: size for name, (_, size) in known.items()}:
            raise ForeignMeshError(named, dict(zip(axis_names, mesh.shape, strict=True)))
        axes = [None if dim is None else tuple(Axis(known[n][0], 1, known[n][1]) for n in dim) for dim in dims]
        asked = Constraint(tuple(None if dim is None else tuple(a for a in dim if a.size > 1) for dim in axes))
        shape = mlir.tensor_shape(op.results[0])
        even = asked.dividing(shape)
        uneven += even != asked
        op.attributes[_ATTRIBUTE] = mlir.attribute(even.text(mesh))
    main = mlir.main_function(module)
    arguments, results = (len(values) for values in (mlir.entry_block(main).arguments, mlir.terminator(main).operands))
    set_boundary(main, [None] * arguments, [None] * results)
    declare_mesh(module, mesh)
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
    """Take the constraints out of `module` that JAX adds to each op in Explicit mode, and leave those that were written.

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


def drop_constraints(module: Any, op_names: Sequence[str]) -> int:
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


def _declared_meshes(module: Any) -> dict[str, dict[str, int]]:
    """The sizes of the axes of each mesh that `module` declares, by symbol."""
    return {
        ir.StringAttr(op.attributes["sym_name"]).value: {
            name: int(size) for name, size in _NAMED_MESH.findall(str(op.attributes["mesh"]))
        }
        for op in mlir.block_operations(module.body)
        if op.name == "sdy.mesh"
    }


def _read(op: Operation) -> tuple[str, list[tuple[str, ...] | None]]:
    """The symbol of a constraint's mesh, and for each dim the names of its axes; None where it is open."""
    text = str(op.attributes[_ATTRIBUTE])
    found = _SHARDING.match(text)
    if found is None:
        raise ValueError(f"no sharding: {text}")
    dims = _DIM.findall(found[2])
    return found[1], [None if dim.strip() == "?" else tuple(_AXIS.findall(dim)) for dim in dims]


def _parts(axes: Sequence[Axis]) -> int:
    return math.prod(axis.size for axis in axes)
