"""Reading and writing Shardy's annotations on the values of a module."""

from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis, LogicalMesh, axes_text, parse_axes

SHARDING = "sdy.sharding"
RULE = "sdy.sharding_rule"
# Where a sharding is written: of Shardy's collectives; of its constraints and reshards; of islands; of all other ops.
_ATTRIBUTES = ("out_sharding", "sharding", "out_shardings", SHARDING)


def declare_mesh(module: Any, mesh: LogicalMesh) -> None:
    """Declare `mesh` in `module`, instead of the mesh that was declared there before."""
    for op in mlir.block_operations(module.body):
        if op.name == "sdy.mesh":
            op.erase()
    axes = [sdy.MeshAxisAttr.get(name, size) for name, size in zip(mesh.axis_names, mesh.shape, strict=True)]
    with ir.InsertionPoint.at_block_begin(module.body):
        sdy.mesh(mlir.MESH_SYMBOL, sdy.MeshAttr.get(axes))


def set_boundary(
    function: Operation,
    inputs: Sequence[ArraySharding | None],
    outputs: Sequence[ArraySharding | None],
) -> None:
    """Write the shardings of a function's arguments and results; None leaves the sharding open."""
    for kind, shardings in (("arg_attrs", inputs), ("res_attrs", outputs)):
        attributes = mlir.function_arguments_attributes(function, kind)
        for attribute, sharding in zip(attributes, shardings, strict=True):
            attribute.pop(SHARDING, None)
            if sharding is not None:
                attribute[SHARDING] = mlir.attribute(sharding.to_sdy())
        mlir.set_function_arguments_attributes(function, kind, attributes)


def boundary(function: Operation, mesh: LogicalMesh) -> tuple[tuple[ArraySharding, ...], tuple[ArraySharding, ...]]:
    """The shardings of a function's arguments and results; what has none is replicated."""

    def shardings(kind: str, values: Sequence[Value]) -> tuple[ArraySharding, ...]:
        attributes = mlir.function_arguments_attributes(function, kind)
        pairs = zip(attributes, values, strict=True)
        return tuple(_read(attribute.get(SHARDING), mesh, [value])[0] for attribute, value in pairs)

    return (
        shardings("arg_attrs", list(mlir.entry_block(function).arguments)),
        shardings("res_attrs", list(mlir.terminator(function).operands)),
    )


def result_shardings(op: Operation, mesh: LogicalMesh) -> list[ArraySharding]:
    """The shardings of the results of `op`; what has none is replicated."""
    attributes = op.attributes
    for name in _ATTRIBUTES:
        if name in attributes:
            return _read(attributes[name], mesh, op.results)
    return _read(None, mesh, op.results)


def set_result_shardings(op: Operation, shardings: Sequence[ArraySharding]) -> None:
    """Write the shardings of the results of an ordinary op."""
    inner = ", ".join(sharding.to_sdy().removeprefix("#sdy.sharding") for sharding in shardings)
    op.attributes[SHARDING] = mlir.attribute(f"#sdy.sharding_per_value<[{inner}]>")


def make_plain_constant(op: Operation) -> None:
    """Put an ordinary constant in place of Shardy's own `sdy.constant`."""
    with ir.InsertionPoint(op), op.location:
        mlir.replace(op, stablehlo.constant(op.attributes["value"]))


def axes_attribute(op: Operation, name: str, mesh: LogicalMesh) -> tuple[Axis, ...]:
    """An axis list attribute of one of Shardy's collectives, such as `reduction_axes`."""
    return parse_axes(mesh, str(op.attributes[name]))


def axis_list(mesh: LogicalMesh, axes: Sequence[Axis]) -> Any:
    """Axes as an attribute of one of Shardy's collectives."""
    return mlir.attribute(f"#sdy<axis_ref_list{axes_text(mesh, axes)}>")


def _read(attribute: Any, mesh: LogicalMesh, values: Sequence[Value]) -> list[ArraySharding]:
    """The shardings that an attribute gives to `values`; replicated where there is none, or no tensor."""
    if attribute is None:
        return [ArraySharding.replicated(mesh, _rank(value)) for value in values]
    known = mlir.known_here((_read, mesh.shape))
    if (found := known.get(attribute)) is None:
        text = str(attribute)
        parts = [text] if text.startswith("#sdy.sharding<") else text.split("<@")[1:]
        found = known[attribute] = [
            ArraySharding.from_sdy(mesh, part, rank) if (rank := _rank(value)) else ArraySharding.replicated(mesh, 0)
            for part, value in zip(parts, values, strict=True)
        ]
    return list(found)


def _rank(value: Value) -> int:
    found = value.type
    return found.rank if isinstance(found, ir.RankedTensorType) else 0
