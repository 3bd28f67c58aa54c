"""`Plan.jit`: a function that runs as planned.

Takes a function and a plan with a signature; gives a callable over pytrees of `jax.Array`s, like that of `jax.jit`,
compiled once. Invariants: it runs the program that was planned, partitioned as it was measured; an array with the
planned sharding is not copied; results have `NamedSharding`s over the user's mesh.
"""

import re
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import Mesh

from alpa_cfp.errors import PlanError
from alpa_cfp.jit.autoshard import planned_for
from alpa_cfp.jit.compiled_program import CompiledProgram
from alpa_cfp.jit.inner_call import call_inside
from alpa_cfp.jit.matching import check_arguments, check_signature, checked_mesh, mesh_of
from alpa_cfp.plan.plan import Plan
from alpa_cfp.spmd.compile.dispatch import Direct, dispatched


class PlannedFunction:
    """A function that runs by a plan; made by `Plan.jit`.

    It is traced and compiled at its first call, or by `compile`, for the arguments of the plan. Called inside `jax.jit`
    it is an inner call, as `as_jax_jit` describes.

    Attributes:
        plan: The plan.
        mesh: The mesh on which it runs.
    """

    def __init__(self, fn: Callable[..., Any], plan: Plan, mesh: Mesh | None):
        signature = plan.signature
        if signature is None:
            raise PlanError.without_signature()
        self.plan = plan
        self.mesh = mesh_of(plan, signature) if mesh is None else checked_mesh(mesh, plan, signature)
        self._fn = fn
        self._name = getattr(fn, "__name__", "function")
        self._signature = signature
        self._compiled: CompiledProgram | None = None
        self._donates = any(placed.donated for placed in signature.inputs)
        self._lock = threading.Lock()
        self._dispatched = dispatched(self._name, self.call)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the result of `fn(*args, **kwargs)`. Donated arguments are invalid afterwards.

        Raises:
            PlanError: the arguments or the function differ from those that were planned, or the call is inside
                `jax.grad`, `jax.vmap` or `jax.shard_map`.
        """
        if self._donates and has_duplicates(jax.tree.leaves((args, kwargs))):
            return self.call(*args, **kwargs)[0]
        return self._dispatched(*args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> "PlannedFunction":
        """Compiles for these arguments, whose shapes are enough, without running; returns itself.

        Raises:
            PlanError: the arguments or the function differ from those that were planned.
        """
        _ = self._program_for(args, kwargs).executable
        return self

    def as_jax_jit(self) -> Any:
        """Returns a function of `jax.jit` that calls the planned program.

        It composes with what JAX has for such functions: `trace`, `lower`, `jax.export`, calls inside `jax.jit`. Its
        program is the planned one of each device, with its collectives, in a `jax.shard_map`; where XLA partitions the
        program (`plan.explain()` says so), it is the annotated one. JAX compiles it with its own options, and where it
        is called inside `jax.jit`, with the caller, so the compiler may combine and order collectives otherwise than
        when the plan was measured. Arguments with another sharding are moved in each call.
        """
        return self._jitted

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Traces as `jax.jit(fn).trace` does; arguments, whose shapes are enough, get the planned shardings.

        Raises:
            PlanError: the arguments or the function differ from those that were planned.
        """
        program = self._program_for(args, kwargs)
        described = [
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=leaf.weak_type)
            for leaf, sharding in zip(program.program.inputs, program.inputs, strict=True)
        ]
        args, kwargs = jax.tree.unflatten(program.program.in_tree, described)
        return self._jitted.trace(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lowers as `jax.jit(fn).lower` does, for ahead-of-time compilation: `lower(...).compile()`.

        See `as_jax_jit` for the program; arguments are those of `trace`.

        Raises:
            PlanError: the arguments or the function differ from those that were planned.
        """
        return self.trace(*args, **kwargs).lower()

    def as_text(self) -> str:
        """Returns the optimised HLO of one device.

        Raises:
            PlanError: it is not compiled yet.
        """
        return self._require_program().executable.text()

    def cost_analysis(self) -> dict[str, float]:
        """Returns XLA's counts of the work of one device, such as "flops" and "bytes accessed".

        Raises:
            PlanError: it is not compiled yet.
        """
        return self._require_program().executable.xla_cost_analysis()

    def memory_bytes(self) -> dict[str, int]:
        """Returns the memory of one device in bytes.

        The keys are "arguments", "outputs", "aliased" (outputs in arguments' buffers) and "temporaries".

        Raises:
            PlanError: it is not compiled yet.
        """
        return self._require_program().executable.memory_bytes()

    def memory_analysis(self) -> Any:
        """Returns XLA's memory statistics of one device, as `jax.stages.Compiled.memory_analysis` does.

        Raises:
            PlanError: it is not compiled yet.
        """
        return self._require_program().executable.xla_memory_analysis()

    @property
    def input_shardings(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """`(args, kwargs)` with a `NamedSharding` instead of each array, for `jax.device_put`.

        Raises:
            PlanError: it is not compiled yet.
        """
        program = self._require_program()
        return jax.tree.unflatten(program.program.in_tree, program.inputs)

    @property
    def output_shardings(self) -> Any:
        """The result with a `NamedSharding` instead of each array.

        Raises:
            PlanError: it is not compiled yet.
        """
        program = self._require_program()
        return jax.tree.unflatten(program.program.out_tree, program.outputs)

    def call(self, *args: Any, **kwargs: Any) -> tuple[Any, Direct | None]:
        """Returns the result, and how to run without Python for arguments of the same kind; None if there is no way.

        Raises:
            PlanError: as for a call.
        """
        leaves, tree = jax.tree.flatten((args, kwargs))
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return self._jitted(*args, **kwargs), None
        program = self._compiled
        if program is None or tree != program.program.in_tree or not program.takes(leaves):
            program = self._program_for(args, kwargs)
        direct = program.direct_for(leaves)
        return program(leaves), direct

    @cached_property
    def _jitted(self) -> Any:
        def planned(*args: Any, **kwargs: Any) -> Any:
            return call_inside(self._program_for(args, kwargs), jax.tree.leaves((args, kwargs)))

        planned.__name__ = self._name
        return jax.jit(planned, donate_argnums=_donated_arguments(self.plan))

    def _program_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CompiledProgram:
        check_arguments(self._signature, args, kwargs)
        with self._lock:
            compiled = self._compiled
            if compiled is None or jax.tree.structure((args, kwargs)) != compiled.program.in_tree:
                donated = [placed.donated for placed in self._signature.inputs]
                program = planned_for(self._fn, self.mesh, self.plan, args, kwargs, donated)
                check_signature(self._signature, program, self.mesh)
                self._compiled = compiled = CompiledProgram(program, self._signature, self.mesh)
            return compiled

    def _require_program(self) -> CompiledProgram:
        if self._compiled is None:
            raise PlanError.not_compiled()
        return self._compiled


def has_duplicates(leaves: Sequence[Any]) -> bool:
    """Whether an object occurs twice."""
    return len(set(map(id, leaves))) < len(leaves)


def _donated_arguments(plan: Plan) -> tuple[int, ...]:
    assert plan.signature is not None
    found = (re.match(r"args\[(\d+)\]", placed.path) for placed in plan.signature.inputs if placed.donated)
    return tuple(sorted({int(each[1]) for each in found if each}))
