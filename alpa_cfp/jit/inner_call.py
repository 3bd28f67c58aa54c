"""A planned program as a part of a function that JAX traces.

Takes a partitioned program on a mesh; gives its results for leaves that `jax.jit`, `jax.export` and the like trace.
Invariants: arguments and results have the planned shardings; the program is the planned one of each device, or where
XLA partitions it, has the planned constraints. It is compiled with the function that it is traced into.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from alpa_cfp.errors import PlanError
from alpa_cfp.jit.compiled_program import CompiledProgram
from alpa_cfp.jit.meshes import platform_of
from alpa_cfp.spmd.compile.inner_program import InnerProgram, Result
from alpa_cfp.spmd.tracing.key_kinds import key_kind

_Shardings = tuple[NamedSharding, ...]


def call_inside(compiled: CompiledProgram, leaves: Sequence[Any]) -> Any:
    """Returns the result of a planned program for leaves of its arguments that are being traced.

    Raises:
        PlanError: it is called inside `jax.shard_map`, is being differentiated or batched, or has a random state.
    """
    if compiled.partitioned.draws_random:
        raise PlanError.own_random_state()
    mesh = _mesh_of_caller(compiled.mesh, leaves)
    inputs, outputs = (_shardings(mesh, of) for of in (compiled.inputs, compiled.outputs))
    arrays = [
        jax.random.key_data(leaf) if kind.is_key else leaf
        for leaf, kind in zip(leaves, compiled.program.inputs, strict=True)
    ]
    body = _over_parts if _is_of_one_device(compiled) else _over_whole_arrays
    run = jax.jit(body(_inner(compiled), mesh, inputs, outputs), in_shardings=inputs, out_shardings=outputs)
    results = run(*_in_types(mesh, arrays, inputs))
    keys = [
        jax.random.wrap_key_data(result, impl=key_kind(kind.dtype)) if kind.is_key else result
        for result, kind in zip(results, compiled.program.outputs, strict=True)
    ]
    return jax.tree.unflatten(compiled.program.out_tree, keys)


def _is_of_one_device(compiled: CompiledProgram) -> bool:
    return compiled.partitioned.partitioner == "shardy"


def _inner(compiled: CompiledProgram) -> InnerProgram:
    program, module = compiled.partitioned, compiled.program.module
    of_one_device = _is_of_one_device(compiled)
    results = tuple(
        Result(
            sharding.local_shape(shape.dims) if of_one_device else shape.dims,
            shape.dtype,
            leaf.weak_type and not leaf.is_key,
        )
        for shape, sharding, leaf in zip(
            module.shape.results, program.output_shardings, compiled.program.outputs, strict=True
        )
    )
    return InnerProgram(
        module.name,
        program.bytecode,
        program.mesh,
        tuple(map(str, compiled.mesh.axis_names)),
        of_one_device,
        results,
        platform_of(compiled.mesh),
        PlanError.transformed,
    )


def _shardings(mesh: Mesh, of: Sequence[NamedSharding]) -> _Shardings:
    return tuple(NamedSharding(mesh, each.spec) for each in of)


def _over_parts(program: InnerProgram, mesh: Mesh, inputs: _Shardings, outputs: _Shardings) -> Callable[..., Any]:
    in_specs, out_specs = (tuple(each.spec for each in of) for of in (inputs, outputs))
    return jax.shard_map(program, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _over_whole_arrays(program: InnerProgram, mesh: Mesh, _: _Shardings, outputs: _Shardings) -> Callable[..., Any]:
    explicit = _explicit_axes(mesh)
    return jax.sharding.auto_axes(program, axes=explicit, out_sharding=outputs) if explicit else program


def _in_types(mesh: Mesh, arrays: Sequence[Any], shardings: _Shardings) -> list[Any]:
    """Returns the arrays with these shardings in their types, where axes of the mesh are explicit."""
    if not (axes := _explicit_axes(mesh)):
        return list(arrays)
    return [
        jax.sharding.reshard(array, NamedSharding(mesh, _along(sharding.spec, axes)))
        for array, sharding in zip(arrays, shardings, strict=True)
    ]


def _along(spec: PartitionSpec, axes: Sequence[Any]) -> PartitionSpec:
    """Returns `spec` without other axes than these."""
    dims = (() if names is None else (names,) if isinstance(names, str) else names for names in spec)
    return PartitionSpec(*(tuple(name for name in names if name in axes) or None for names in dims))


def _explicit_axes(mesh: Mesh) -> tuple[Any, ...]:
    return tuple(name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Explicit)


def _mesh_of_caller(mesh: Mesh, leaves: Sequence[Any]) -> Mesh:
    """Returns the mesh with the axis types of the function that is being traced, where it has such a mesh.

    Raises:
        PlanError: that function is the body of a `jax.shard_map`.
    """
    of_leaves = (jax.typeof(leaf).sharding.mesh for leaf in leaves)
    for current in (jax.sharding.get_abstract_mesh(), *of_leaves):
        if AxisType.Manual in current.axis_types:
            raise PlanError.transformed("jax.shard_map")
        if (current.axis_names, current.axis_sizes) == (mesh.axis_names, mesh.axis_sizes):
            return Mesh(mesh.devices, mesh.axis_names, axis_types=current.axis_types)
    return mesh
