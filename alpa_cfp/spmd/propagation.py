"""Sharding propagation: from the shardings of some inputs and outputs to a sharding of every value.

Takes an unoptimised `HloModule` with what alpa has set on its inputs and outputs, and annotates it in place: this is
alpa's state SHARDING_ANNOTATED for `enable_auto_sharding=False`, where the fork ran XLA's sharding propagation alone.
Shardy's propagation does it here. Invariants: a sharding that was set is kept, every input and output sharding
divides its array, and markers stay where nothing uses them.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

from jaxlib import xla_client as xc

from alpa_cfp.spmd.errors import IndivisibleShardingError
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.shapes import Shape
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from alpa_cfp.spmd.shardings.sharding_rules import run_shardy_passes
from alpa_cfp.spmd.simplify.merging import shield_markers, unshield_markers

Shardings = tuple[ArraySharding, ...]
PartialShardings = list[ArraySharding | None]


def propagate(
    module: HloModule,
    mesh: LogicalMesh,
    *,
    to_outputs: bool,
    inputs: Sequence[ArraySharding | None] | None = None,
    before: Callable[[Any], None] | None = None,
    after: Callable[[Any], None] | None = None,
) -> None:
    """Annotate `module` for `mesh`, in place.

    Args:
        module: An unoptimised module.
        mesh: The logical mesh.
        to_outputs: Whether outputs without a sharding get the one that propagation finds for them. Otherwise they are
            replicated, as in XLA without `allow_spmd_sharding_propagation_to_output`.
        inputs: The shardings of the parameters, None for those that propagation is to find; without it what alpa has
            set on the module.
        before: Edits the parsed module before.
        after: Edits the parsed module after, when all else of `module` is set.

    Raises:
        IndivisibleShardingError: a sharding that was set does not divide its array.
        ValueError: a sharding that was set does not fit the mesh.
    """

    def change(parsed: Any) -> None:
        if before is not None:
            before(parsed)
        # The call before may decide about inputs.
        given = given_inputs(module, mesh) if inputs is None else list(inputs)
        outputs = _given_outputs(module, mesh, given, to_outputs=to_outputs)
        found = _propagate_dividing(parsed, mesh, given, outputs, module, before)
        module.input_shardings, module.output_shardings = found
        module.mesh = mesh
        module.propagated = True
        if after is not None:
            after(parsed)

    module.bytecode, _ = mlir.edit(module.bytecode, change)


def _given_outputs(
    module: HloModule, mesh: LogicalMesh, inputs: PartialShardings, *, to_outputs: bool
) -> PartialShardings:
    """The shardings of the results, None for those that propagation is to find."""
    outputs = _given(module.output_protos, module.shape.results, mesh, "output")
    module.fixed_outputs = frozenset(i for i, sharding in enumerate(outputs) if sharding is not None)
    for result, parameter in donation_pairs(module):
        if outputs[result] is None:
            outputs[result] = inputs[parameter]
    if not to_outputs:
        outputs[:] = [
            ArraySharding.replicated(mesh, len(shape.dims)) if sharding is None else sharding
            for sharding, shape in zip(outputs, module.shape.results, strict=True)
        ]
    return outputs


def donation_pairs(module: HloModule) -> list[tuple[int, int]]:
    """Pairs (result, donated parameter) of equal shape and dtype, in order, each used once: `jax.jit`'s matching.

    Aliases that alpa has set explicitly come first.
    """
    pairs = list(module.aliases)
    taken, aliased = {result for result, _ in pairs}, {parameter for _, parameter in pairs}
    free = defaultdict[Shape, deque[int]](deque)
    for result, shape in enumerate(module.shape.results):
        if result not in taken:
            free[shape].append(result)
    for parameter, (donated, shape) in enumerate(zip(module.donated, module.shape.parameters, strict=True)):
        if donated and parameter not in aliased and free[shape]:
            pairs.append((free[shape].popleft(), parameter))
    return pairs


def given_inputs(module: HloModule, mesh: LogicalMesh) -> PartialShardings:
    """The shardings that alpa has set on the parameters of a module, None for the others.

    Raises:
        IndivisibleShardingError: one does not divide its array.
        ValueError: one does not fit the mesh.
    """
    return _given(module.input_protos, module.shape.parameters, mesh, "input")


def _given(protos: Sequence[bytes] | None, shapes: Sequence[Shape], mesh: LogicalMesh, kind: str) -> PartialShardings:
    if protos is None:
        return [None] * len(shapes)
    result: PartialShardings = []
    for i, (data, shape) in enumerate(zip(protos, shapes, strict=True)):
        proto = xc.OpSharding()
        proto.ParseFromString(data)
        sharding = ArraySharding.from_proto(mesh, proto, len(shape.dims))
        if sharding is not None and not sharding.divides(shape.dims):
            raise IndivisibleShardingError(kind, i, shape.dims, mesh.shape)
        result.append(sharding)
    return result


def _propagate_dividing(
    parsed: Any,
    mesh: LogicalMesh,
    inputs: PartialShardings,
    outputs: PartialShardings,
    module: HloModule,
    before: Callable[[Any], None] | None,
) -> tuple[Shardings, Shardings]:
    """Propagate; where that splits an input or output unevenly, fix that one to its even part and propagate again."""
    while True:
        shielded = shield_markers(mlir.entry_block(mlir.main_function(parsed)))
        annotations.declare_mesh(parsed, mesh)
        annotations.set_boundary(mlir.main_function(parsed), inputs, outputs)
        # What has no sharding is replicated, as all is on one device.
        if mesh.num_devices > 1:
            run_shardy_passes(parsed, "sdy-propagation-pipeline")
        main = mlir.main_function(parsed)
        found_in, found_out = annotations.boundary(main, mesh)
        uneven = False
        for given, found, shapes in (
            (inputs, found_in, module.shape.parameters),
            (outputs, found_out, module.shape.results),
        ):
            for i, (sharding, shape) in enumerate(zip(found, shapes, strict=True)):
                if not sharding.divides(shape.dims):
                    given[i] = sharding.dividing(shape.dims)
                    uneven = True
        if not uneven:
            if shielded:
                unshield_markers(mlir.entry_block(main))
            return found_in, found_out
        _reload(parsed, module.bytecode)
        if before is not None:
            before(parsed)


def _reload(parsed: Any, bytecode: bytes) -> None:
    """Put the operations of `bytecode` in place of those of `parsed`."""
    fresh = mlir.parse(bytecode)
    for op in mlir.block_operations(parsed.body):
        op.erase()
    for op in mlir.block_operations(fresh.body):
        op.detach_from_parent()
        parsed.body.append(op)
