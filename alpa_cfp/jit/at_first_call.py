"""`@autoshard(mesh)`: a function that is planned at its first call, and again for arguments of other shapes.

Takes a function, a mesh and options; gives a callable over pytrees of `jax.Array`s. Invariant: arguments of one
structure, shapes and dtypes are planned once, whichever threads call.
"""

import contextlib
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, ParamSpec, TypeVar

import jax

from alpa_cfp.errors import AutoshardError, PlanError
from alpa_cfp.jit.autoshard import Boundary, plan_function
from alpa_cfp.jit.meshes import AnyMesh
from alpa_cfp.jit.planned_function import PlannedFunction, has_duplicates
from alpa_cfp.jit.tracing import path_of, shape_and_dtype, shapes_of
from alpa_cfp.plan.plan import Plan
from alpa_cfp.planner.options import PlanOptions
from alpa_cfp.spmd.compile.dispatch import Direct, dispatched

P = ParamSpec("P")
R = TypeVar("R")
_Key = tuple[Any, tuple[Any, ...], tuple[bool, ...]]


class AutoshardedFunction(Generic[P, R]):
    """A function that is planned at its first call; made by `@autoshard(mesh)`.

    As `jax.jit` compiles anew for arguments with another structure, other shapes or dtypes, it is planned anew for
    them. Several threads may call it. Called inside `jax.jit` it is an inner call (see `PlannedFunction.as_jax_jit`).

    Attributes:
        fn: The function.
        mesh: The mesh.
    """

    def __init__(self, fn: Callable[P, R], mesh: AnyMesh, boundary: Boundary, options: PlanOptions) -> None:
        self.mesh = mesh
        self.fn = fn
        self._boundary = boundary
        self._options = options
        self._donates = isinstance(boundary.donate_argnums, int) or len(boundary.donate_argnums) > 0
        self._plans: dict[_Key, Plan] = {}
        self._planned: dict[_Key, PlannedFunction] = {}
        self._last: Plan | None = None
        self._lock = threading.RLock()
        self._dispatched = dispatched(getattr(fn, "__name__", "function"), self._call)
        functools.update_wrapper(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Returns the result of the function, which is planned for the arguments if it is not yet.

        Raises:
            CFPError: as for `autoshard` and for calls of a `PlannedFunction`.
        """
        if self._donates and has_duplicates(jax.tree.leaves((args, kwargs))):
            return self._call(*args, **kwargs)[0]
        return self._dispatched(*args, **kwargs)

    @property
    def plan(self) -> Plan:
        """The plan that was made last.

        Raises:
            PlanError: there is none yet.
        """
        if self._last is None:
            raise PlanError.not_planned()
        return self._last

    def plan_for(self, *args: P.args, **kwargs: P.kwargs) -> Plan:
        """Returns the plan for these arguments, whose shapes are enough; it is made if there is none yet.

        Raises:
            CFPError: as for `autoshard`.
        """
        key = _key_of(args, kwargs)
        with self._lock:
            if key not in self._plans:
                self._last = self._plans[key] = self._made(key, args, kwargs)
            return self._plans[key]

    def planned_for(self, *args: P.args, **kwargs: P.kwargs) -> PlannedFunction:
        """Returns the function by the plan for these arguments, whose shapes are enough.

        It has `compile`, `lower`, `as_text`, `input_shardings` and the like.

        Raises:
            CFPError: as for `autoshard`.
        """
        key = _key_of(args, kwargs)
        if (planned := self._planned.get(key)) is not None:
            return planned
        with self._lock:
            if key not in self._planned:
                self._planned[key] = self.plan_for(*args, **kwargs).jit(self.fn)
            return self._planned[key]

    def trace(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Traces as `PlannedFunction.trace` does."""
        return self.planned_for(*args, **kwargs).trace(*args, **kwargs)

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Lowers as `PlannedFunction.lower` does."""
        return self.planned_for(*args, **kwargs).lower(*args, **kwargs)

    def _made(self, key: _Key, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        """Makes a plan; where dtypes are only weak in another way, the program is often one that has a plan."""
        alike = [plan for known, plan in self._plans.items() if known[:2] == key[:2]]
        # Arguments may lie as the plan has left them: that is not asked for.
        shapes = shapes_of(args, kwargs)
        for plan in alike:
            with contextlib.suppress(PlanError):  # of another program
                return self._planned_with(replace(self._options, plan=plan), *shapes)
        return self._planned_with(self._options, args, kwargs)

    def _planned_with(self, options: PlanOptions, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        return plan_function(self.fn, self.mesh, args, kwargs, self._boundary, options)

    def _call(self, *args: P.args, **kwargs: P.kwargs) -> tuple[Any, Direct | None]:
        return self.planned_for(*args, **kwargs).call(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Decorator:
    """The decorator `@autoshard(mesh, ...)`.

    Attributes:
        mesh: The mesh.
        boundary: What is said of arguments and results.
        options: The options of planning.
    """

    mesh: AnyMesh
    boundary: Boundary
    options: PlanOptions

    def __call__(self, fn: Callable[P, R]) -> AutoshardedFunction[P, R]:
        """Returns `fn`, to be planned at its first call."""
        return AutoshardedFunction(fn, self.mesh, self.boundary, self.options)


def _key_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Key:
    """Returns the structure of arguments, the shapes and dtypes of their leaves, and which dtypes are weak.

    Raises:
        AutoshardError: a leaf is no array.
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    try:
        kinds = tuple(map(shape_and_dtype, leaves))
    except TypeError:
        jax.tree_util.tree_map_with_path(_check_is_array, (args, kwargs))
        raise
    return tree, kinds, tuple(getattr(leaf, "weak_type", isinstance(leaf, int | float | complex)) for leaf in leaves)


def _check_is_array(path: Any, leaf: Any) -> None:
    try:
        shape_and_dtype(leaf)
    except TypeError as error:
        raise AutoshardError.no_array(path_of(path), leaf) from error
