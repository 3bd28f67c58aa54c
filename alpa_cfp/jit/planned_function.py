"""`Plan.jit`: a function that runs as planned.

Takes a function and a plan with a signature; gives a callable over pytrees of `jax.Array`s, like that of `jax.jit`,
compiled once. Invariants: it runs the program that was planned, partitioned as it was measured; an array with the
planned sharding is not copied; results have `NamedSharding`s over the user's mesh.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding

from alpa_cfp.errors import NoDevicesError, PlanError
from alpa_cfp.jit.autoshard import planned_for, signature_of
from alpa_cfp.jit.global_arrays import client_of, placed
from alpa_cfp.jit.meshes import make_mesh, spec_of
from alpa_cfp.jit.tracing import TracedFunction, path_of, shape_and_dtype
from alpa_cfp.plan.plan import Plan
from alpa_cfp.plan.signature import Placed, Signature
from alpa_cfp.spmd.compile import backend
from alpa_cfp.spmd.compile.dispatch import Direct, dispatched
from alpa_cfp.spmd.compile.executable import Client, MeshExecutable
from alpa_cfp.spmd.tracing.key_kinds import key_kind
from alpa_cfp.targets.target import TargetMesh


class PlannedFunction:
    """A function that runs by a plan; made by `Plan.jit`.

    It is traced and compiled at its first call, or by `compile`, for the arguments of the plan.

    Attributes:
        plan: The plan.
        mesh: The mesh on which it runs.
    """

    def __init__(self, fn: Callable[..., Any], plan: Plan, mesh: Mesh | None):
        signature = plan.signature
        if signature is None:
            raise PlanError.without_signature()
        self.plan = plan
        self.mesh = mesh_of(plan, signature) if mesh is None else _checked(mesh, plan, signature)
        self._fn = fn
        self._signature = signature
        self._compiled: _Compiled | None = None
        self._donates = any(placed.donated for placed in signature.inputs)
        self._dispatched = dispatched(getattr(fn, "__name__", "function"), self._called)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the result of `fn(*args, **kwargs)`. Donated arguments are invalid afterwards.

        Raises:
            PlanError: the arguments or the function differ from those that were planned, or the call is inside
                `jax.jit`.
        """
        if self._donates and _has_duplicates(jax.tree.leaves((args, kwargs))):
            return self._called(*args, **kwargs)[0]
        return self._dispatched(*args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> "PlannedFunction":
        """Compiles for these arguments, whose shapes are enough, without running; returns itself.

        Raises:
            PlanError: the arguments or the function differ from those that were planned.
        """
        self._compiled_for(args, kwargs)
        return self

    def as_text(self) -> str:
        """Returns the optimised HLO of one device.

        Raises:
            PlanError: it is not compiled yet.
        """
        return self._require_compiled().executable.text()

    def memory_bytes(self) -> dict[str, int]:
        """Returns the memory of one device in bytes.

        The keys are "arguments", "outputs", "aliased" (outputs in arguments' buffers) and "temporaries".

        Raises:
            PlanError: it is not compiled yet.
        """
        return self._require_compiled().executable.memory_bytes()

    @property
    def input_shardings(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """`(args, kwargs)` with a `NamedSharding` instead of each array, for `jax.device_put`.

        Raises:
            PlanError: it is not compiled yet.
        """
        compiled = self._require_compiled()
        return jax.tree.unflatten(compiled.program.in_tree, compiled.inputs)

    @property
    def output_shardings(self) -> Any:
        """The result with a `NamedSharding` instead of each array.

        Raises:
            PlanError: it is not compiled yet.
        """
        compiled = self._require_compiled()
        return jax.tree.unflatten(compiled.program.out_tree, compiled.outputs)

    def _called(self, *args: Any, **kwargs: Any) -> tuple[Any, Direct | None]:
        leaves, tree = jax.tree.flatten((args, kwargs))
        compiled = self._compiled
        if compiled is None or tree != compiled.program.in_tree or not compiled.takes(leaves):
            compiled = self._compiled_for(args, kwargs)
        direct = compiled.direct_for(leaves)
        return compiled(leaves), direct

    def _compiled_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "_Compiled":
        _check_arguments(self._signature, args, kwargs)
        compiled = self._compiled
        if compiled is None or jax.tree.structure((args, kwargs)) != compiled.program.in_tree:
            donated = [placed.donated for placed in self._signature.inputs]
            program = planned_for(self._fn, self.mesh, self.plan, args, kwargs, donated)
            _check_signature(self._signature, program, self.mesh)
            self._compiled = compiled = _Compiled(program, self._signature, self.mesh)
        return compiled

    def _require_compiled(self) -> "_Compiled":
        if self._compiled is None:
            raise PlanError.not_compiled()
        return self._compiled


class _Compiled:
    """A compiled program on a mesh, called with leaves."""

    def __init__(self, program: TracedFunction, signature: Signature, mesh: Mesh):
        self.program = program
        self.inputs = _named(signature.inputs, mesh)
        self.outputs = _named(signature.outputs, mesh)
        self.executable = _UserMeshExecutable(client_of(mesh), program, self.outputs)
        self._donated = [leaf.donated for leaf in signature.inputs]
        self._expected = [(leaf.shape, leaf.dtype) for leaf in program.inputs]
        self._keys = [i for i, leaf in enumerate(program.inputs) if leaf.is_key]

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

    def __init__(self, client: Client, program: TracedFunction, outputs: Sequence[NamedSharding]):
        super().__init__(client, program.module)
        self._handlers = [
            backend.array_handler(shape.dims, shape.dtype, sharding)
            for shape, sharding in zip(self.module.shape.results, outputs, strict=True)
        ]


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


def _checked(mesh: object, plan: Plan, signature: Signature) -> Mesh:
    if isinstance(mesh, TargetMesh):
        raise NoDevicesError.cannot_run(mesh.target.name)
    if not isinstance(mesh, Mesh):
        raise NoDevicesError.not_here(plan.mesh_shape)
    if tuple(mesh.axis_sizes) != plan.mesh_shape:
        raise PlanError.other_mesh(plan.mesh_shape, tuple(mesh.axis_sizes))
    if tuple(mesh.axis_names) != signature.axis_names:
        raise PlanError.other_axes(signature.axis_names, tuple(mesh.axis_names))
    return mesh


def _named(placed: Sequence[Placed], mesh: Mesh) -> list[NamedSharding]:
    return [NamedSharding(mesh, spec_of(each.dims)) for each in placed]


def _has_sharding(array: jax.Array, sharding: NamedSharding) -> bool:
    return array.sharding == sharding or array.sharding.is_equivalent_to(sharding, array.ndim)


def _has_duplicates(leaves: Sequence[Any]) -> bool:
    return len(set(map(id, leaves))) < len(leaves)


def _copy_shared_donated(arrays: list[Any], donated: Sequence[bool]) -> None:
    """Copies arrays that occur twice and are donated: a donated buffer must have no other use."""
    used_up = {id(array) for array, is_donated in zip(arrays, donated, strict=True) if is_donated}
    seen: set[int] = set()
    for i, array in enumerate(arrays):
        if isinstance(array, jax.Array) and id(array) in used_up and id(array) in seen:
            arrays[i] = jnp.copy(array)
        seen.add(id(array))


def _check_arguments(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Checks that arguments are those that were planned.

    Raises:
        PlanError: they differ, or are being traced.
    """
    given: dict[str, tuple[tuple[int, ...], str]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path((args, kwargs)):
        if isinstance(leaf, Tracer):
            raise PlanError.traced_arguments()
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


def _check_signature(planned: Signature, program: TracedFunction, mesh: Mesh) -> None:
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
