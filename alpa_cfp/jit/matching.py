"""Checks that arguments, a mesh and a program are those that a plan was made for.

Takes the signature of a plan; raises a `PlanError` that names what differs.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from alpa_cfp.errors import NoDevicesError, PlanError
from alpa_cfp.jit.autoshard import signature_of
from alpa_cfp.jit.meshes import make_mesh, spec_of
from alpa_cfp.jit.tracing import TracedFunction, path_of, shape_and_dtype
from alpa_cfp.plan.plan import Plan
from alpa_cfp.plan.signature import Placed, Signature
from alpa_cfp.targets.target import TargetMesh


def mesh_of(plan: Plan, signature: Signature) -> Mesh:
    """Returns the mesh for which a plan was made.

    Raises:
        PlanError: this process lacks its devices, or the plan was made without devices.
    """
    if not signature.devices:
        raise PlanError.no_devices("the plan was made for a mesh without devices")
    here = {device.id: device for device in jax.devices()}
    missing = [number for number in signature.devices if number not in here]
    if missing:
        raise PlanError.no_devices(f"the plan was made on devices that this process does not have: {missing}")
    devices = [here[number] for number in signature.devices]
    return make_mesh(plan.mesh_shape, signature.axis_names, signature.axis_types, devices)


def checked_mesh(mesh: object, plan: Plan, signature: Signature) -> Mesh:
    """Returns `mesh`, if the plan can run there.

    Raises:
        NoDevicesError: it has no devices that are here.
        PlanError: it has another shape or other axis names.
    """
    if isinstance(mesh, TargetMesh):
        raise NoDevicesError.cannot_run(mesh.target.name)
    if not isinstance(mesh, Mesh):
        raise NoDevicesError.not_here(plan.mesh_shape)
    if tuple(mesh.axis_sizes) != plan.mesh_shape:
        raise PlanError.other_mesh(plan.mesh_shape, tuple(mesh.axis_sizes))
    if tuple(mesh.axis_names) != signature.axis_names:
        raise PlanError.other_axes(signature.axis_names, tuple(mesh.axis_names))
    return mesh


def named_shardings(placed: Sequence[Placed], mesh: Mesh) -> list[NamedSharding]:
    """Returns the sharding of each argument or result on `mesh`."""
    return [NamedSharding(mesh, spec_of(each.dims)) for each in placed]


def check_arguments(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Checks that arguments are those that were planned.

    Raises:
        PlanError: they differ.
    """
    given: dict[str, tuple[tuple[int, ...], str]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path((args, kwargs)):
        try:
            shape, dtype = shape_and_dtype(leaf)
        except TypeError as error:
            raise PlanError.other_arguments(f"{path_of(path)} is a {type(leaf).__name__}, and no array") from error
        given[path_of(path)] = shape, str(dtype)
    planned = {each.path: (each.shape, each.dtype) for each in signature.inputs}
    for path, (shape, dtype) in planned.items():
        if path not in given:
            raise PlanError.other_arguments(f"{path} is missing")
        if given[path] != (shape, dtype):
            raise PlanError.other_arguments(
                f"{path} is {_array_text(*given[path])} here and was {_array_text(shape, dtype)} when it was planned"
            )
    if unknown := [path for path in given if path not in planned]:
        raise PlanError.other_arguments(f"{unknown[0]} was not there when it was planned")


def check_signature(planned: Signature, program: TracedFunction, mesh: Mesh) -> None:
    """Checks that an annotated program has the results and the shardings of the plan.

    Raises:
        PlanError: it does not. Other results come from another function; other shardings from the propagation of
            another version of JAX, or from a plan that was edited.
    """
    found = signature_of(program, mesh)
    if (found.inputs, found.outputs) != (planned.inputs, planned.outputs):
        raise PlanError.other_program()


def _array_text(shape: tuple[int, ...], dtype: str) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"
