"""A planned program on a mesh: its partitioned and its compiled form, and calls of it.

Takes an annotated program and the shardings of its boundary; gives results for leaves of arguments. Invariants: an
array with the planned sharding is not copied; results have `NamedSharding`s over the user's mesh.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding

from alpa_cfp.jit.global_arrays import client_of, placed
from alpa_cfp.jit.matching import named_shardings
from alpa_cfp.jit.tracing import TracedFunction, shape_and_dtype
from alpa_cfp.plan.signature import Signature
from alpa_cfp.spmd.compile import backend
from alpa_cfp.spmd.compile.dispatch import Direct
from alpa_cfp.spmd.compile.executable import Client, MeshExecutable
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import PartitionedProgram, partition_to_run
from alpa_cfp.spmd.tracing.key_kinds import key_kind


class CompiledProgram:
    """An annotated program on a mesh, compiled when it is first needed, and called with leaves.

    Attributes:
        program: The annotated program.
        mesh: The mesh.
        inputs: The sharding of each leaf of the arguments.
        outputs: The sharding of each leaf of the result.
    """

    def __init__(self, program: TracedFunction, signature: Signature, mesh: Mesh):
        self.program = program
        self.mesh = mesh
        self.inputs = named_shardings(signature.inputs, mesh)
        self.outputs = named_shardings(signature.outputs, mesh)
        self._donated = [leaf.donated for leaf in signature.inputs]
        self._expected = [(leaf.shape, leaf.dtype) for leaf in program.inputs]
        self._keys = [i for i, leaf in enumerate(program.inputs) if leaf.is_key]

    @cached_property
    def partitioned(self) -> PartitionedProgram:
        """The partitioned program."""
        return partition_to_run(self.program.module)

    @cached_property
    def executable(self) -> MeshExecutable:
        """The compiled program."""
        module = replace(self.program.module, partitioned=self.partitioned)
        return _UserMeshExecutable(client_of(self.mesh), module, self.outputs)

    def takes(self, leaves: Sequence[Any]) -> bool:
        """Whether the leaves are arrays of the shapes and dtypes for which it was compiled."""
        try:
            return all(
                not isinstance(leaf, Tracer) and shape_and_dtype(leaf) == expected
                for leaf, expected in zip(leaves, self._expected, strict=True)
            )
        except TypeError:  # one is no array
            return False

    def direct_for(self, leaves: Sequence[Any]) -> Direct | None:
        """Returns the dispatch without Python for such leaves; None if some have to be resharded or are random keys."""
        has_keys = any(leaf.is_key for leaf in (*self.program.inputs, *self.program.outputs))
        moved = any(isinstance(leaves[i], jax.Array) for i in self._to_reshard(leaves))
        if self.executable.loaded is None or has_keys or moved:
            return None
        return Direct(self.executable.loaded, self.inputs, self.outputs)

    def __call__(self, leaves: Sequence[Any]) -> Any:
        results = self.executable.execute_sharded_on_local_devices(self._resharded(leaves))
        for i, leaf in enumerate(self.program.outputs):
            if leaf.is_key:
                results[i] = jax.random.wrap_key_data(results[i], impl=key_kind(leaf.dtype))
            elif leaf.weak_type:
                results[i] = backend.weakly_typed(results[i])
        return jax.tree.unflatten(self.program.out_tree, results)

    def _resharded(self, leaves: Sequence[Any]) -> list[Any]:
        """Returns the leaves with the planned shardings, random keys as their bits."""
        arrays = list(leaves)
        for i in self._keys:
            arrays[i] = jax.random.key_data(arrays[i])
        if any(self._donated):
            _copy_shared_donated(arrays, self._donated)
        if to_reshard := self._to_reshard(arrays):
            of = [arrays, self.inputs, [leaf.path for leaf in self.program.inputs], self._donated]
            moved = placed(*([each[i] for i in to_reshard] for each in of))
            for i, array in zip(to_reshard, moved, strict=True):
                arrays[i] = array
        return arrays

    def _to_reshard(self, arrays: Sequence[Any]) -> list[int]:
        """The positions of the arrays, keys as their bits, that do not have the planned shardings."""
        return [
            i
            for i, (array, sharding) in enumerate(zip(arrays, self.inputs, strict=True))
            if not (isinstance(array, jax.Array) and _has_sharding(array, sharding))
        ]


class _UserMeshExecutable(MeshExecutable):
    """A `MeshExecutable` whose results are sharded over the user's mesh, by the names of its axes."""

    def __init__(self, client: Client, module: HloModule, outputs: Sequence[NamedSharding]):
        super().__init__(client, module)
        self._handlers = [
            backend.array_handler(shape.dims, shape.dtype, sharding)
            for shape, sharding in zip(self.module.shape.results, outputs, strict=True)
        ]


def _has_sharding(array: jax.Array, sharding: NamedSharding) -> bool:
    return array.sharding == sharding or array.sharding.is_equivalent_to(sharding, array.ndim)


def _copy_shared_donated(arrays: list[Any], donated: Sequence[bool]) -> None:
    """Copies arrays that occur twice and are donated: a donated buffer must have no other use."""
    used_up = {id(array) for array, is_donated in zip(arrays, donated, strict=True) if is_donated}
    seen: set[int] = set()
    for i, array in enumerate(arrays):
        if isinstance(array, jax.Array) and id(array) in used_up and id(array) in seen:
            arrays[i] = jnp.copy(array)
        seen.add(id(array))
