"""Traces a Python function with the shapes of its arguments into the module that is planned.

Takes the arguments of `jax.jit`; gives a `TracedFunction`. Only shapes and dtypes of arguments matter, not their
shardings. Random keys are arrays of their bits in the module, and keys outside of it. Invariant: the parameters of the
module are the leaves of `(args, kwargs)`, in order; the results are those of the function.
"""

import logging
import re
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.api_util import shaped_abstractify

from alpa_cfp.errors import AutoshardError
from alpa_cfp.jit import unrolling
from alpa_cfp.jit.constraints import AskedShardings
from alpa_cfp.jit.explicit import is_explicit
from alpa_cfp.plan.caveats import Caveats
from alpa_cfp.plan.plan_report import Caveat
from alpa_cfp.plan.signature import Asked, MicroBatches, Recomputed
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.lowered_form import remove_identity_converts
from alpa_cfp.spmd.ir.op_kinds import CONTROL_FLOW
from alpa_cfp.spmd.module.combiner_limits import CombinerLimits
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.propagation import donation_pairs
from alpa_cfp.spmd.shardings import constraints, islands
from alpa_cfp.spmd.shardings.user_axes import UserAxes
from alpa_cfp.spmd.tracing.host_callbacks import without_callbacks
from alpa_cfp.spmd.tracing.key_kinds import is_key

logger = logging.getLogger(__name__)

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
        asked: What is asked of the shardings of each input.
        asked_of_results: The same of each output.
        unrolled: The number of loops that are unrolled in the module.
        keeps_loops: Whether no loop was to be unrolled.
        names_mesh: Whether the function itself says what lies where, in constraints or a `shard_map`.
        recomputed: The parts of the forward pass that the backward pass of the module computes again.
        micro_batches: The parts in which samples go through the module; None for all at once.
    """

    module: HloModule
    inputs: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]
    in_tree: Any
    out_tree: Any
    caveats: tuple[Caveat, ...] = ()
    asked: tuple[Asked, ...] = ()
    asked_of_results: tuple[Asked, ...] = ()
    unrolled: int = 0
    keeps_loops: bool = False
    names_mesh: bool = False
    recomputed: tuple[Recomputed, ...] = ()
    micro_batches: MicroBatches | None = None


def trace(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    donate_argnums: int | Sequence[int],
    platform: str,
    asked: AskedShardings | None = None,
    donated: Sequence[bool] | None = None,
    *,
    keeps_loops: bool = False,
) -> TracedFunction:
    """Traces `fn` once.

    Args:
        fn: The function.
        args, kwargs: Its arguments.
        donate_argnums: As for `jax.jit`.
        platform: That of the devices ("cpu", "gpu").
        asked: What is asked of arguments and results; None for nothing, and then `fn` must ask for nothing either.
        donated: For each leaf of `(args, kwargs)` whether it is donated, in the place of `donate_argnums`.
        keeps_loops: Whether loops stay loops, those that can be unrolled, too.

    Raises:
        AutoshardError: an argument is no array, or what is asked of a result cannot be.
        ForeignMeshError: `fn` asks for shardings over another mesh.
        NestedIslandError: `fn` has a `shard_map` inside a `shard_map`.
        HostCallbackError: `fn` uses the result of a callback into Python.
        TypeError, ValueError: `jax.jit` refuses the function or `donate_argnums`.
    """
    started = time.perf_counter()
    abstract = shapes_of(args, kwargs)
    typed = abstract if asked is None else asked.typed(abstract)
    with nullcontext() if asked is None else asked.context():
        traced = jax.jit(fn, donate_argnums=donate_argnums, keep_unused=True).trace(*typed[0], **typed[1])
    if donated is None:
        donated = [info.donated for info in jax.tree.leaves(traced.args_info)]
    inputs = [
        Leaf(path_of(path), leaf.shape, leaf.dtype, leaf.weak_type)
        for path, leaf in jax.tree_util.tree_leaves_with_path(abstract)
    ]
    outputs = [
        Leaf("result" + jax.tree_util.keystr(path), leaf.shape, leaf.dtype, leaf.weak_type)
        for path, leaf in jax.tree_util.tree_leaves_with_path(traced.out_info)
    ]
    name = re.sub(r"\W", "_", getattr(fn, "__name__", "function"))
    caveats = Caveats()
    most = 0 if keeps_loops else unrolling.MAX_EQUATIONS
    bytecode, unrolled = _lowered(
        name, traced, jax.tree.leaves(typed), _LOWERED_AS.get(platform, platform), most, caveats
    )
    module = HloModule.from_stablehlo(name, bytecode, donated)
    of_inputs: Sequence[Asked] = [()] * len(inputs)
    of_outputs: Sequence[Asked] = [()] * len(outputs)
    names_mesh = False
    if asked is not None:
        of_inputs = asked.inputs
        of_outputs = asked.outputs([(leaf.path, leaf.shape) for leaf in outputs], traced.out_tree)
        names_mesh = _constrain(module, asked, of_outputs, caveats, is_typed=is_explicit(traced.jaxpr))
    module.combiner_limits = CombinerLimits.on(platform)
    in_tree = jax.tree.structure((tuple(args), kwargs))
    seconds = time.perf_counter() - started
    logger.info("%s: traced with %d arguments and %d results in %.2f s", name, len(inputs), len(outputs), seconds)
    inputs = [replace(leaf, donated=is_donated) for leaf, is_donated in zip(inputs, module.donated, strict=True)]
    return TracedFunction(
        module, tuple(inputs), tuple(outputs), in_tree, traced.out_tree, caveats.all,
        tuple(of_inputs), tuple(of_outputs), unrolled, keeps_loops, names_mesh,
    )  # fmt: skip


def _constrain(
    module: HloModule, asked: AskedShardings, of_outputs: Sequence[Asked], caveats: Caveats, *, is_typed: bool
) -> bool:
    """Puts what is asked of arguments and results into a module, and makes it name the axes of the logical mesh.

    Gives whether the function itself names the mesh.

    An array that takes the buffer of a donated argument lies as that one does, where nothing else is asked of it. Where
    something else is asked, it takes no buffer.
    """
    inputs, results = (dict(enumerate(map(asked.constraint, each))) for each in (asked.inputs, of_outputs))

    def are_apart(result: int, parameter: int) -> bool:
        first, second = inputs[parameter], results[result]
        return first is not None and second is not None and first != second

    while apart := {parameter for result, parameter in donation_pairs(module) if are_apart(result, parameter)}:
        module.donated = tuple(is_donated and number not in apart for number, is_donated in enumerate(module.donated))
    for result, parameter in donation_pairs(module):
        inputs[parameter] = results[result] = inputs[parameter] or results[result]
    of_arguments, of_results = (
        {number: each.of_rank(len(shapes[number].dims)) for number, each in found.items() if each is not None}
        for found, shapes in ((inputs, module.shape.parameters), (results, module.shape.results))
    )

    def write(parsed: Any) -> tuple[int, int, bool]:
        names_mesh = constraints.names_a_mesh(parsed)
        if not (of_arguments or of_results or names_mesh):
            return 0, 0, False
        if is_typed:
            constraints.drop_derived(parsed)
        in_loops = constraints.drop_constraints(parsed, CONTROL_FLOW)
        axes = UserAxes.of(parsed, asked.mesh, asked.axes.axis_names)
        islands.drop_inner_constraints(parsed)
        uneven = constraints.use_logical_mesh(parsed, axes)
        islands.use_logical_mesh(parsed, axes)
        constraints.constrain_boundary(mlir.main_function(parsed), asked.mesh, of_arguments, of_results)
        return in_loops, uneven, names_mesh

    module.bytecode, (in_loops, uneven, names_mesh) = mlir.edit(module.bytecode, write)
    if in_loops:
        caveats.warn(f"{in_loops} sharding constraints are in loops or branches inside which nothing is planned")
    if uneven:
        caveats.warn(f"{uneven} sharding constraints split dims into parts that are not equal; these dims stay whole")
    return names_mesh


def shapes_of(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns `(args, kwargs)` with a `jax.ShapeDtypeStruct` for each array, without its sharding.

    Raises:
        AutoshardError: a leaf is no array.
    """
    return jax.tree_util.tree_map_with_path(_abstract, (tuple(args), kwargs))


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


def _lowered(
    name: str, traced: Any, inputs: Sequence[Any], platform: str, max_equations: int, caveats: Caveats
) -> tuple[bytes, int]:
    """The StableHLO of a traced function without callbacks that can be left out, with plannable loops unrolled.

    Args:
        max_equations: The greatest number of equations into which a loop is unrolled; 0 for none.

    Returns:
        The StableHLO, and the number of loops that are unrolled.
    """
    closed, left_out = without_callbacks(traced.jaxpr)
    for sentence in left_out:
        caveats.warn(sentence)
    chooses = max_equations > 0
    loops = unrolling.find_loops(closed, max_equations, chooses=chooses)
    if loops.dynamic:
        caveats.warn(f"{loops.dynamic} loops whose length depends on values stay loops; nothing is planned inside them")
    if loops.too_long and max_equations:
        caveats.warn(
            f"{loops.too_long} loops stay loops, being more than {max_equations} operations if unrolled; "
            "nothing is planned inside them"
        )
    if loops.unplanned:
        caveats.note(f"{loops.unplanned} loops stay loops: there is nothing in them to plan")
    if loops.recurrences:
        caveats.note(f"{loops.recurrences} loops over time steps stay loops: they are split as a whole")
    if loops.too_fine:
        caveats.note(f"{loops.too_fine} loops stay loops: unrolled they would be very many small operations")
    if loops.unrolled or left_out or is_explicit(closed):

        def unrolled(*leaves: Any) -> list[Any]:
            return unrolling.evaluate(closed, leaves, max_equations, chooses=chooses)

        unrolled.__name__ = name  # ops are named after it in HLO texts and profiles
        traced = jax.jit(unrolled, keep_unused=True).trace(*inputs)
    lowered = traced.lower(lowering_platforms=(platform,))
    module = lowered.compiler_ir("stablehlo")
    with module.context:
        remove_identity_converts(module)
    # As bytecode the ops keep their locations, by which profilers and HLO texts name them.
    return mlir.to_bytecode(module), loops.unrolled
