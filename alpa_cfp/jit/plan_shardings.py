"""`Plan.shardings`: the shardings of a plan as pytrees, for plain JAX.

Takes a plan with a signature, a function and its arguments, of which shapes are enough; gives pytrees of
`NamedSharding`s with their structure. Nothing is compiled. Invariant: a leaf has the sharding of its path in the plan.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding

from alpa_cfp.errors import PlanError
from alpa_cfp.jit.matching import check_arguments, checked_mesh, mesh_of
from alpa_cfp.jit.meshes import spec_of
from alpa_cfp.jit.tracing import path_of, shape_and_dtype
from alpa_cfp.plan.plan import Plan
from alpa_cfp.plan.signature import Placed


@dataclass(frozen=True, slots=True)
class PlanShardings:
    """The shardings of a function's arguments and result; made by `Plan.shardings`.

    Attributes:
        args: The positional arguments, with a `NamedSharding` instead of each array: `in_shardings` of `jax.jit`.
        kwargs: The keyword arguments, likewise.
        result: The result, likewise: `out_shardings` of `jax.jit`.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


def shardings_of(
    plan: Plan, fn: Callable[..., Any], mesh: Mesh | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> PlanShardings:
    """Returns the shardings of `fn(*args, **kwargs)` by a plan; see `Plan.shardings`.

    Raises:
        PlanError: the plan has no signature, or is for another mesh, other arguments or another function.
    """
    signature = plan.signature
    if signature is None:
        raise PlanError.without_signature()
    on = _for_plain_jax(mesh_of(plan, signature)) if mesh is None else checked_mesh(mesh, plan, signature)
    check_arguments(signature, args, kwargs)
    of_args, of_kwargs = _mapped(path_of, (args, kwargs), signature.inputs, on)
    # Arrays without their shardings, which may be in their types.
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(*shape_and_dtype(leaf)), (args, kwargs))
    result = jax.eval_shape(fn, *shapes[0], **shapes[1])
    paths = [_path_of_result(path) for path, _ in jax.tree_util.tree_leaves_with_path(result)]
    if paths != [each.path for each in signature.outputs]:
        raise PlanError.other_program()
    return PlanShardings(of_args, of_kwargs, _mapped(_path_of_result, result, signature.outputs, on))


def _path_of_result(path: Sequence[Any]) -> str:
    return "result" + jax.tree_util.keystr(tuple(path))


def _mapped(name: Callable[[Sequence[Any]], str], tree: Any, placed: Sequence[Placed], mesh: Mesh) -> Any:
    known = {each.path: NamedSharding(mesh, spec_of(each.dims)) for each in placed}
    return jax.tree_util.tree_map_with_path(lambda path, _: known[name(path)], tree)


def _for_plain_jax(mesh: Mesh) -> Mesh:
    """Returns the mesh with the axis types of `jax.set_mesh`, or else automatic ones.

    The types of a mesh that `jax.make_mesh` has made are explicit: given to `jax.jit`, they would ask the function to
    say the sharding of each result that JAX cannot derive.
    """
    current = jax.sharding.get_abstract_mesh()
    named_alike = (current.axis_names, current.axis_sizes) == (mesh.axis_names, mesh.axis_sizes)
    types = current.axis_types if named_alike else (AxisType.Auto,) * len(mesh.axis_names)
    return Mesh(mesh.devices, mesh.axis_names, axis_types=types)
