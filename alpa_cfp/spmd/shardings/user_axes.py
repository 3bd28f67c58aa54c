"""Shardings as a lowered program writes them, over the axes of the user's mesh, read as axes of the logical mesh.

Takes attributes of a module as JAX lowers it; gives `Axis`es. Invariant: a sharding over any other mesh is an error.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxlib.mlir import ir

from alpa_cfp.spmd.errors import ForeignMeshError
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.shardings.sharding import Axis, LogicalMesh

_SHARDING = re.compile(r"<@([\w$.-]+), \[(.*?)\]")
_NAMED_MESH = re.compile(r'"([^"]*)"=(\d+)')
_DIM = re.compile(r"\{([^}]*)\}")
# Of collectives inside `shard_map`, since jax 0.11.
_GROUP_AXES = re.compile(r"replica_group_mesh_axes<mesh = @([\w$.-]+), axes = \[(.*)\]>")
_AXIS = re.compile(r'"([^"]*)"')

Dims = tuple[tuple[Axis, ...] | None, ...]


def declared_meshes(module: Any) -> dict[str, dict[str, int]]:
    """The sizes of the axes of each mesh that a module declares, by symbol."""
    return {
        ir.StringAttr(op.attributes["sym_name"]).value: {
            name: int(size) for name, size in _NAMED_MESH.findall(str(op.attributes["mesh"]))
        }
        for op in mlir.block_operations(module.body)
        if op.name == "sdy.mesh"
    }


@dataclass(frozen=True)
class UserAxes:
    """The axes of a mesh by the names that a program gives them.

    Attributes:
        mesh: The logical mesh.
        names: The name of each of its axes in the program.
        declared: The sizes of the axes of each mesh that the program declares, by symbol.
    """

    mesh: LogicalMesh
    names: tuple[str, ...]
    declared: Mapping[str, Mapping[str, int]] = field(compare=False)

    @classmethod
    def of(cls, module: Any, mesh: LogicalMesh, names: Sequence[str]) -> "UserAxes":
        """The axes of a logical mesh by their names in `module`."""
        return cls(mesh, tuple(names), declared_meshes(module))

    def read(self, attribute: Any) -> list[Dims]:
        """For each sharding in an attribute the axes of each dim; None for a dim that is open and has none.

        Raises:
            ForeignMeshError: one is over another mesh.
        """
        return [self._dims(symbol, dims) for symbol, dims in _SHARDING.findall(str(attribute))]

    def groups(self, attribute: Any) -> list[list[int]] | None:
        """The groups of devices of a collective that names axes; None if it lists devices.

        Raises:
            ForeignMeshError: they are axes of another mesh.
        """
        found = _GROUP_AXES.search(str(attribute))
        if found is None:
            return None
        sizes = self._sizes(found[1])
        axes = (Axis(self.names.index(name), 1, sizes[name]) for name in _AXIS.findall(found[2]))
        return self.mesh.groups([axis for axis in axes if axis.size > 1])

    def _sizes(self, symbol: str) -> dict[str, int]:
        sizes = dict(zip(self.names, self.mesh.shape, strict=True))
        if (named := self.declared.get(symbol, {})) != sizes:
            raise ForeignMeshError(named, sizes)
        return sizes

    def _dims(self, symbol: str, text: str) -> Dims:
        sizes = self._sizes(symbol)
        index = {name: number for number, name in enumerate(self.names)}

        def dim(part: str) -> tuple[Axis, ...] | None:
            if part.strip() == "?":
                return None
            axes = (Axis(index[name], 1, sizes[name]) for name in _AXIS.findall(part))
            return tuple(axis for axis in axes if axis.size > 1)

        return tuple(map(dim, _DIM.findall(text)))
