"""The programs that alpa does not trace but builds by hand, with the XLA builder of its fork of jaxlib.

Takes shapes and alpa's `ShardingSpec`s, gives back annotated modules. Invariant: arguments and results are sharded
exactly as the specs say. The logical mesh is flat, one axis of all devices, whatever the mesh of the specs: in
row-major order of the devices, every spec is parts of that one axis.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.hlo_module import HloModule, set_hlo_module_output_shardings
from alpa_cfp.spmd.propagation import propagate
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from alpa_on_jax.jax.interpreters.pxla import ShardingSpec


def allgather(
    array: jax.ShapeDtypeStruct, source: ShardingSpec, target: ShardingSpec, num_devices: int, platform: str
) -> HloModule:
    """Reshards an array from `source` to `target`."""
    module = _lower("allgather", lambda x: x, [array], platform)
    return _annotate(module, [source], [target], num_devices)


def concatenate(
    array: jax.ShapeDtypeStruct, count: int, dim: int, spec: ShardingSpec, num_devices: int, platform: str
) -> HloModule:
    """Takes `count` arrays and gives them joined along `dim`; all are sharded as `spec`."""
    module = _lower("concatenate", lambda *parts: jax.numpy.concatenate(parts, dim), [array] * count, platform)
    return _annotate(module, [spec] * count, [spec], num_devices)


def index_select(
    arrays: Sequence[jax.ShapeDtypeStruct],
    index: jax.ShapeDtypeStruct,
    dim: int,
    specs: Sequence[ShardingSpec],
    platform: str,
) -> HloModule:
    """Takes arrays, and an index that every device has, and gives of each array what the index says along `dim`.

    Every result is sharded as its array. As in XLA, an index that the array does not have stands for its nearest one.
    """

    def select(*arguments: jax.Array) -> list[jax.Array]:
        return [jax.numpy.take(array, arguments[-1], dim, mode="clip") for array in arguments[:-1]]

    module = _lower("index_select", select, [*arrays, index], platform)
    return _annotate(module, [*specs, None], specs, int(np.prod(specs[0].mesh_shape)))


def zero_constant(platform: str) -> HloModule:
    """Takes nothing and gives a zero; without shardings, since it is not known on how many devices it will be."""
    return _lower("dummy_zero_constant", lambda: np.int32(0), [], platform)


def _lower(
    name: str, function: Callable[..., Any], arguments: Sequence[jax.ShapeDtypeStruct], platform: str
) -> HloModule:
    lowered = jax.jit(function, keep_unused=True).trace(*arguments).lower(lowering_platforms=(platform,))
    return HloModule.from_stablehlo(name, mlir.to_bytecode(lowered.compiler_ir("stablehlo")))


def _annotate(
    module: HloModule, inputs: Sequence[ShardingSpec | None], outputs: Sequence[ShardingSpec], num_devices: int
) -> HloModule:
    mesh = LogicalMesh((int(num_devices),))
    given = [
        ArraySharding.replicated(mesh, len(shape.dims))
        if spec is None
        else ArraySharding.from_proto(mesh, spec.sharding_proto(), len(shape.dims))
        for spec, shape in zip(inputs, module.shape.parameters, strict=True)
    ]
    set_hlo_module_output_shardings(module, [spec.sharding_proto() for spec in outputs])
    propagate(module, mesh, to_outputs=False, inputs=given)
    return module
