"""Traces a Python function with the shapes of its arguments into the module that is planned.

Takes the arguments of `jax.jit`; gives a `TracedFunction`. Only shapes and dtypes of arguments matter, not their
shardings. Random keys are arrays of their bits in the module, and keys outside of it. Invariant: the parameters of the
module are the leaves of `(args, kwargs)`, in order; the results are those of the function.
"""

import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.api_util import shaped_abstractify

from alpa_cfp.errors import AutoshardError
from alpa_cfp.jit import unrolling
from alpa_cfp.jit.jaxprs import all_equations
from alpa_cfp.plan.caveats import Caveats
from alpa_cfp.plan.plan_report import Caveat
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.lowered_form import remove_identity_converts
from alpa_cfp.spmd.module.combiner_limits import CombinerLimits
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.tracing.host_callbacks import without_callbacks
from alpa_cfp.spmd.tracing.key_kinds import is_key

logger = logging.getLogger(__name__)

# The primitives that set shardings, in jax 0.10 and 0.11.
_SHARDING_PRIMITIVES = frozenset({"sharding_constraint", "shard_map", "reshard", "mesh_cast"})
_LOWERED_AS = {"gpu": "cuda"}


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array among the arguments or results of a function.

    Attributes:
        path: Its path: "args[0].params['w']", "kwargs['rate']", "result[1]".
        shape: Its shape.
        dtype: Its dtype, which may be one of random keys.
        weak_type: Whether its dtype is weak, as that of a Python number.
        donated: Whether a result may take its buffer.
    """

    path: str
    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool = False
    donated: bool = False

    @property
    def is_key(self) -> bool:
        """Whether it holds random keys."""
        return is_key(self)


@dataclass(frozen=True, slots=True)
class TracedFunction:
    """A traced function.

    Attributes:
        module: Its module, to be planned.
        inputs: The leaves of `(args, kwargs)`.
        outputs: The leaves of its result.
        in_tree: The structure of `(args, kwargs)`.
        out_tree: The structure of the result.
        caveats: The parts of the function that are not in the program, or not planned.
    """

    module: HloModule
    inputs: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]
    in_tree: Any
    out_tree: Any
    caveats: tuple[Caveat, ...] = ()

    def with_donated(self, donated: Sequence[bool]) -> "TracedFunction":
        """Returns the same program with these inputs donated."""
        inputs = (replace(leaf, donated=is_donated) for leaf, is_donated in zip(self.inputs, donated, strict=True))
        return replace(self, module=replace(self.module, donated=tuple(donated)), inputs=tuple(inputs))


def trace(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    donate_argnums: int | Sequence[int],
    platform: str,
) -> TracedFunction:
    """Traces `fn` once, for devices of `platform` ("cpu", "gpu").

    Raises:
        AutoshardError: an argument is no array, or `fn` sets shardings itself.
        HostCallbackError: `fn` uses the result of a callback into Python.
        TypeError, ValueError: `jax.jit` refuses the function or `donate_argnums`.
    """
    started = time.perf_counter()
    abstract = jax.tree_util.tree_map_with_path(_abstract, (tuple(args), kwargs))
    traced = jax.jit(fn, donate_argnums=donate_argnums, keep_unused=True).trace(*abstract[0], **abstract[1])
    _refuse_shardings(traced.jaxpr)
    donated = [info.donated for info in jax.tree.leaves(traced.args_info)]
    inputs = [
        Leaf(path_of(path), leaf.shape, leaf.dtype, leaf.weak_type, is_donated)
        for (path, leaf), is_donated in zip(jax.tree_util.tree_leaves_with_path(abstract), donated, strict=True)
    ]
    outputs = [
        Leaf("result" + jax.tree_util.keystr(path), leaf.shape, leaf.dtype, leaf.weak_type)
        for path, leaf in jax.tree_util.tree_leaves_with_path(traced.out_info)
    ]
    name = re.sub(r"\W", "_", getattr(fn, "__name__", "function"))
    caveats = Caveats()
    bytecode = _lowered(name, traced, inputs, _LOWERED_AS.get(platform, platform), caveats)
    module = HloModule.from_stablehlo(name, bytecode, donated)
    module.combiner_limits = CombinerLimits.on(platform)
    in_tree = jax.tree.structure((tuple(args), kwargs))
    seconds = time.perf_counter() - started
    logger.info("%s: traced with %d arguments and %d results in %.2f s", name, len(inputs), len(outputs), seconds)
    return TracedFunction(module, tuple(inputs), tuple(outputs), in_tree, traced.out_tree, caveats.all)


def path_of(path: Sequence[Any]) -> str:
    """Returns the name of a leaf of `(args, kwargs)`, given its path there."""
    return ("args", "kwargs")[path[0].idx] + jax.tree_util.keystr(tuple(path[1:]))


def shape_and_dtype(value: Any) -> tuple[tuple[int, ...], Any]:
    """Returns the shape and dtype that `jax.jit` sees of an array, a number or a `jax.ShapeDtypeStruct`.

    Raises:
        TypeError: the value is none of these.
    """
    if isinstance(value, jax.Array):
        return value.shape, value.dtype
    aval: Any = shaped_abstractify(value)
    return aval.shape, aval.dtype


def _abstract(path: Any, value: Any) -> jax.ShapeDtypeStruct:
    try:
        aval: Any = value.aval if isinstance(value, jax.Array) else shaped_abstractify(value)
    except TypeError as error:
        raise AutoshardError.no_array(path_of(path), value) from error
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _lowered(name: str, traced: Any, inputs: Sequence[Leaf], platform: str, caveats: Caveats) -> bytes:
    """The StableHLO of a traced function without callbacks that can be left out, with plannable loops unrolled."""
    closed, left_out = without_callbacks(traced.jaxpr)
    for sentence in left_out:
        caveats.warn(sentence)
    loops = unrolling.find_loops(closed, unrolling.MAX_EQUATIONS)
    if loops.dynamic:
        caveats.warn(f"{loops.dynamic} loops whose length depends on values stay loops; nothing is planned inside them")
    if loops.too_long:
        caveats.warn(
            f"{loops.too_long} loops stay loops, being more than {unrolling.MAX_EQUATIONS} operations if unrolled; "
            "nothing is planned inside them"
        )
    if loops.unplanned:
        caveats.note(f"{loops.unplanned} loops stay loops: there is nothing in them to plan")
    if loops.unrolled or left_out:

        def unrolled(*leaves: Any) -> list[Any]:
            return unrolling.evaluate(closed, leaves, unrolling.MAX_EQUATIONS)

        unrolled.__name__ = name  # ops are named after it in HLO texts and profiles
        abstract = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type) for leaf in inputs]
        traced = jax.jit(unrolled, keep_unused=True).trace(*abstract)
    lowered = traced.lower(lowering_platforms=(platform,))
    module = lowered.compiler_ir("stablehlo")
    with module.context:
        remove_identity_converts(module)
    # As bytecode the ops keep their locations, by which profilers and HLO texts name them.
    return mlir.to_bytecode(module)


def _refuse_shardings(closed: Any) -> None:
    names = (eqn.primitive.name for eqn in all_equations(closed.jaxpr))
    if found := tuple(dict.fromkeys(name for name in names if name in _SHARDING_PRIMITIVES)):
        raise AutoshardError.already_sharded(found)
