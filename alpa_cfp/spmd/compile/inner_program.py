"""A partitioned program as a part of a function that JAX traces.

Takes a partitioned program and traced arrays; gives the program's results, through a primitive that JAX lowers to a
call of the program. Invariants: a program of one device is called by each device inside `jax.shard_map`, with the
collectives that it has; a program that XLA partitions keeps its sharding constraints, on the mesh axes of the caller.

The primitive cannot be differentiated or batched: the program is partitioned for the arrays that it has.

Private interface, tested with jax 0.10.2 and 0.11.2: `jax._src.interpreters.mlir.merge_mlir_modules`,
`ModuleContext.new_channel`, `jax._src.core.ShapedArray`.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax._src import core
from jax._src.interpreters.mlir import merge_mlir_modules
from jax.extend.core import Primitive
from jax.interpreters import ad, batching
from jax.interpreters import mlir as lowering
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from alpa_cfp.spmd import errors
from alpa_cfp.spmd.compile import backend
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation
from alpa_cfp.spmd.ir.op_kinds import region_reducer
from alpa_cfp.spmd.module.partitioned import KINDS
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import LogicalMesh

# Those whose groups are numbers of devices only if they say so.
_WITH_DEVICE_IDS = ("stablehlo.all_reduce", "stablehlo.all_gather", "stablehlo.reduce_scatter")


@dataclass(frozen=True, slots=True)
class Result:
    """A result of a program: its global shape, its dtype, and whether the dtype is weak."""

    shape: tuple[int, ...]
    dtype: np.dtype
    weak_type: bool = False


@dataclass(frozen=True, slots=True, weakref_slot=True)  # JAX keeps what it has traced by weak references
class InnerProgram:
    """A program that is called by a function that JAX traces.

    Attributes:
        name: Its name in HLO texts and profiles.
        bytecode: The partitioned program.
        mesh: The logical mesh that it is partitioned for.
        axis_names: The caller's names of its axes.
        of_one_device: Whether it is the program of one device, rather than one that XLA partitions.
        results: Its results, on one device or as a whole.
        platform: The platform whose compiler it is prepared for.
        refuse: Makes the error for a transformation ("jax.grad") that it does not have.
    """

    name: str
    bytecode: bytes
    mesh: LogicalMesh
    axis_names: tuple[str, ...]
    of_one_device: bool
    results: tuple[Result, ...]
    platform: str
    refuse: Callable[[str], Exception]

    def __call__(self, *operands: Any) -> tuple[Any, ...]:
        """Returns the results; for a program of one device to be called inside `jax.shard_map`."""
        return tuple(_planned_program.bind(*operands, program=self))


_planned_program = Primitive("planned_program")
_planned_program.multiple_results = True


@_planned_program.def_abstract_eval
def _results(*_: Any, program: InnerProgram) -> list[Any]:
    return [core.ShapedArray(each.shape, each.dtype, weak_type=each.weak_type) for each in program.results]


def _refuse_derivative(*_: Any, program: InnerProgram) -> Any:
    raise program.refuse("jax.grad")


def _refuse_batch(*_: Any, program: InnerProgram) -> Any:
    raise program.refuse("jax.vmap")


ad.primitive_jvps[_planned_program] = _refuse_derivative
batching.primitive_batchers[_planned_program] = _refuse_batch


def _lower(context: Any, *operands: Any, program: InnerProgram) -> list[Any]:
    outer = context.module_context
    module = mlir.parse(program.bytecode)
    if program.of_one_device:
        backend.prepare_for(program.platform, module, program.bytecode, one_program_per_device=True)
        with ir.Location.unknown():
            _number_by_partitions(module, outer.new_channel)
    else:
        backend.prepare_for(program.platform, module, program.bytecode, one_program_per_device=False)
        _use_axes_of_caller(module, program)
    main = mlir.main_function(module)
    for kind in ("arg_attrs", "res_attrs"):  # those of an entry function
        if kind in main.attributes:
            del main.attributes[kind]
    types = list(ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).results)
    name = merge_mlir_modules(outer.module, program.name, module, dst_symtab=outer.symbol_table)
    return list(func.CallOp(types, ir.FlatSymbolRefAttr.get(name), list(operands)).results)


lowering.register_lowering(_planned_program, _lower)


def _use_axes_of_caller(module: Any, program: InnerProgram) -> None:
    """Names the mesh and its axes in sharding constraints as the caller does, in place."""
    names = dict(zip(program.mesh.axis_names, map(json.dumps, program.axis_names), strict=True))
    axes = ", ".join(f"{names[own]}={size}" for own, size in zip(names, program.mesh.shape, strict=True))

    def renamed(attribute: Any) -> Any:
        text = re.sub(r'"(\w+)"', lambda found: names[found[1]], str(attribute))
        return ir.Attribute.parse(text.replace(f"@{mlir.MESH_SYMBOL}", f"mesh<[{axes}]>"))

    for op in mlir.all_operations(module):
        for name in (annotations.SHARDING, "sharding"):
            if name in op.attributes and "sdy" in str(op.attributes[name]):
                op.attributes[name] = renamed(op.attributes[name])
    for op in mlir.block_operations(module.body):
        if op.name == "sdy.mesh":
            op.erase()


def _number_by_partitions(module: Any, new_channel: Callable[[], int]) -> None:
    """Lets the devices of collectives be partitions of one program instead of replicas, in place.

    A collective of several arrays becomes one for each: XLA knows no sharding of several arrays in such a program.
    """
    for op in mlir.all_operations(module):
        if op.name == "stablehlo.replica_id":
            with ir.InsertionPoint(op), op.location:
                mlir.replace(op, stablehlo.partition_id())
        elif op.name in KINDS:
            with ir.InsertionPoint(op), op.location:
                collectives = [_of_one_array(op, i) for i in range(len(op.results))]
            for i, each in enumerate(collectives):
                op.results[i].replace_all_uses_with(each.results[0])
                handle = f"#stablehlo.channel_handle<handle = {new_channel()}, type = 1>"
                each.attributes["channel_handle"] = ir.Attribute.parse(handle)
                if op.name in _WITH_DEVICE_IDS:
                    each.attributes["use_global_device_ids"] = ir.UnitAttr.get()
            op.erase()


def _of_one_array(op: Operation, position: int) -> Operation:
    """A copy of a collective, at the current insertion point, for one of its arrays."""
    if len(op.results) == 1:
        return op.clone(ir.InsertionPoint.current).operation
    reducer = region_reducer(op) if len(op.regions) else None
    if len(op.regions) and reducer is None:
        raise errors.InternalError(f"{op.name} of several arrays has a region that is not one op")
    types, operands = [op.results[position].type], [op.operands[position]]
    return mlir.create(op.name, types, operands, mlir.attributes_of(op), reducer=reducer)
