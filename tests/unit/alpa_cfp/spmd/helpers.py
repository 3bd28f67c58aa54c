"""Small programs, shardings of all their values, and the comparison with the serial run.

Takes JAX functions of a few arrays and shardings by short names ("x", "xy", ""), gives back what the devices of a
logical mesh compute. Invariant: every device's part is compared, also where several devices hold the same part.
"""

import functools
import itertools
import random
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxlib import xla_client as xc
from jaxlib.mlir import ir

from alpa_cfp.spmd.compile.devices import named_sharding
from alpa_cfp.spmd.compile.executable import Client, MeshExecutable
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.hlo_module import HloModule, set_hlo_module_input_shardings, set_hlo_module_output_shardings
from alpa_cfp.spmd.module.stages import MARKER
from alpa_cfp.spmd.partition import PartitionedProgram, UnsupportedByShardyError
from alpa_cfp.spmd.partition.shardy import partition_with_shardy
from alpa_cfp.spmd.partition.xla import leave_to_xla
from alpa_cfp.spmd.propagation import propagate
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis, LogicalMesh

MESH_2X4 = LogicalMesh((2, 4))
MESH_8X1 = LogicalMesh((8, 1))
MESH_2X2 = LogicalMesh((2, 2))
MESHES = (MESH_2X4, MESH_8X1, MESH_2X2)

# float32 sums of a few dozen terms of size 1 in another order.
RELATIVE_TOLERANCE = 2e-5
# What a sum that cancels, or bfloat16 and float16, may differ by, relative to the largest entry.
NARROW_TOLERANCE = {"bfloat16": 4e-2, "float16": 5e-3}


def mesh_id(mesh: LogicalMesh) -> str:
    return "x".join(map(str, mesh.shape))


def split(mesh: LogicalMesh, *dims: str) -> ArraySharding:
    """The sharding whose dims are split by the mesh axes named by the letters: `split(mesh, "x", "")`."""
    return ArraySharding(
        mesh,
        tuple(
            tuple(axis for name in names for axis in mesh.axes if mesh.axis_names[axis.index] == name) for names in dims
        ),
    )


def mesh_pieces(mesh: LogicalMesh) -> list[tuple[Axis, ...]]:
    """Ways to take the mesh's axes apart: whole, and each axis of 4 or 8 in a major and a minor part."""
    halves = [
        (Axis(axis.index, 1, 2), Axis(axis.index, 2, axis.size // 2)) if axis.size > 2 else (axis,)
        for axis in mesh.axes
    ]
    return [mesh.axes, tuple(itertools.chain(*halves))]


def random_sharding(rng: random.Random, mesh: LogicalMesh, shape: Sequence[int]) -> ArraySharding:
    """Any sharding that divides `shape`: each axis, or each half of one, on some dim or on none, in any order."""
    pieces = list(rng.choice(mesh_pieces(mesh)))
    rng.shuffle(pieces)
    dims: list[list[Axis]] = [[] for _ in shape]
    for axis in pieces:
        dim = rng.randrange(-1, len(shape)) if rng.random() < 0.85 else -1
        if dim < 0:
            continue
        parts = axis.size * int(np.prod([a.size for a in dims[dim]]))
        if shape[dim] % parts == 0 and shape[dim]:
            before = dims[dim][-1] if dims[dim] else None
            if before and before.index == axis.index and before.pre * before.size == axis.pre:
                dims[dim][-1] = Axis(axis.index, before.pre, before.size * axis.size)  # one axis has one name
            else:
                dims[dim].append(axis)
    return ArraySharding(mesh, tuple(map(tuple, dims)))


def all_shardings(mesh: LogicalMesh, shape: Sequence[int]) -> list[ArraySharding]:
    """Every assignment of whole mesh axes to dims of `shape` that divides it (axes on one dim in mesh order)."""
    choices = itertools.product(range(-1, len(shape)), repeat=len(mesh.axes))
    shardings = [
        ArraySharding(
            mesh,
            tuple(
                tuple(axis for axis, chosen in zip(mesh.axes, choice, strict=True) if chosen == dim)
                for dim in range(len(shape))
            ),
        )
        for choice in choices
    ]
    return [sharding for sharding in shardings if sharding.divides(shape)]


def lower(function: Callable[..., Any], arguments: Sequence[Any], donated: Sequence[bool] = ()) -> HloModule:
    """The unoptimised module of `function` at arrays like `arguments`."""
    lowered = jax.jit(function, keep_unused=True).trace(*arguments).lower(lowering_platforms=("cpu",))
    return HloModule.from_stablehlo("tested", str(lowered.compiler_ir("stablehlo")), donated)


def marked(module: HloModule, names: Sequence[str]) -> HloModule:
    """`module` with its optimization barriers, in order, marked as pipeline markers; the same object."""

    def mark(parsed: Any) -> None:
        block = mlir.entry_block(mlir.main_function(parsed))
        barriers = [op for op in mlir.block_operations(block) if op.name == "stablehlo.optimization_barrier"]
        for op, name in zip(barriers, names, strict=True):
            op.attributes[MARKER] = ir.StringAttr.get(name)

    module.bytecode = mlir.edit(module.bytecode, mark)[0]
    return module


def undefined() -> Any:
    """Alpa's `OpSharding` for "not set"."""
    proto = xc.OpSharding()
    proto.type = xc.OpSharding.Type.MANUAL
    return proto


def annotate(
    module: HloModule,
    mesh: LogicalMesh,
    inputs: Sequence[ArraySharding | None] | None = None,
    outputs: Sequence[ArraySharding | None] | None = None,
    *,
    to_outputs: bool = True,
) -> HloModule:
    """`module` with shardings propagated from those given; the same object."""
    for given, setter in ((inputs, set_hlo_module_input_shardings), (outputs, set_hlo_module_output_shardings)):
        if given is not None:
            setter(module, [undefined() if sharding is None else sharding.to_proto() for sharding in given])
    propagate(module, mesh, to_outputs=to_outputs)
    return module


def annotate_values(
    module: HloModule, mesh: LogicalMesh, choose: Callable[[Any, Sequence[int]], ArraySharding]
) -> HloModule:
    """`module` with the sharding of every parameter, result and intermediate value chosen by `choose(op, shape)`.

    `op` is None for parameters and results.
    """
    module.input_shardings = tuple(choose(None, shape.dims) for shape in module.shape.parameters)
    module.output_shardings = tuple(choose(None, shape.dims) for shape in module.shape.results)
    module.mesh = mesh

    def change(parsed: Any) -> None:
        annotations.declare_mesh(parsed, mesh)
        main = mlir.main_function(parsed)
        annotations.set_boundary(main, module.input_shardings or (), module.output_shardings or ())
        for op in mlir.block_operations(mlir.entry_block(main)):
            if op.name != "func.return" and not op.name.startswith("sdy."):
                annotations.set_result_shardings(op, [choose(op, mlir.tensor_shape(value)) for value in op.results])

    module.bytecode = mlir.edit(module.bytecode, change)[0]
    return module


def annotate_randomly(module: HloModule, mesh: LogicalMesh, seed: int) -> HloModule:
    """`module` with any sharding for every value, as a solver might choose them."""
    rng = random.Random(seed)

    def choose(op: Any, shape: Sequence[int]) -> ArraySharding:
        # An op that holds regions, or that works on several arrays at once, has one sharding for all of them.
        if op is not None and op.name in ("stablehlo.case", "stablehlo.if"):
            return ArraySharding.replicated(mesh, len(shape))
        return random_sharding(rng, mesh, shape)

    return annotate_values(module, mesh, choose)


def values_of(function: Callable[..., Any], arguments: Sequence[Any]) -> list[np.ndarray]:
    """The results of `function` as one device computes them."""
    return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(function)(*arguments))]


def load(module: HloModule, program: PartitionedProgram | None = None) -> MeshExecutable:
    """`module`, partitioned as `program` says, on the first devices of this process."""
    if program is not None:
        module.partitioned = program
    return MeshExecutable(Client(jax.devices()), module)


def place(executable: MeshExecutable, arguments: Iterable[Any]) -> list[jax.Array]:
    """`arguments` on the mesh, as the program takes them."""
    devices = tuple(executable._devices)
    return [
        jax.device_put(np.asarray(value), named_sharding(devices, sharding))
        for value, sharding in zip(arguments, executable.program.input_shardings, strict=True)
    ]


def run(module: HloModule, program: PartitionedProgram, arguments: Sequence[Any]) -> list[jax.Array]:
    executable = load(module, program)
    return executable.execute_sharded_on_local_devices(place(executable, arguments))


def assert_parts_equal(
    results: Sequence[jax.Array], expected: Sequence[np.ndarray], tolerance: float | None = None
) -> None:
    """Every device's part of every result is the part of the expected array that the sharding says."""
    assert len(results) == len(expected)
    for number, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype)
        allowed = NARROW_TOLERANCE.get(wanted.dtype.name, RELATIVE_TOLERANCE) if tolerance is None else tolerance
        inexact = np.issubdtype(wanted.dtype, np.inexact) or wanted.dtype.name == "bfloat16"
        wide = wanted.astype(np.complex128 if wanted.dtype.kind == "c" else np.float64) if inexact else wanted
        finite = np.abs(wide[np.isfinite(wide)]) if inexact else np.zeros(0)
        scale = float(np.max(finite, initial=0.0))
        for shard in result.addressable_shards:
            part, here = np.asarray(shard.data), wide[shard.index]
            message = f"result {number} on device {shard.device.id}"
            if inexact:
                part = part.astype(wide.dtype)
                np.testing.assert_allclose(part, here, rtol=allowed, atol=allowed * scale, err_msg=message)
            else:
                np.testing.assert_array_equal(part, here, err_msg=message)


def assert_partitioned_right(
    module: HloModule,
    arguments: Sequence[Any],
    expected: Sequence[np.ndarray],
    *,
    refused: str | None = None,
    whole_dims: bool = False,
) -> PartitionedProgram:
    """The annotated module's per-device program computes `expected`, or Shardy's partitioner refuses it for a reason
    in which the words `refused` stand, and XLA's partitioner computes `expected`.

    Returns:
        The program that was run.
    """
    try:
        program = partition_with_shardy(module, (), whole_dims=whole_dims)
    except UnsupportedByShardyError as error:
        if refused is None or not any(reason in str(error) for reason in refused.split("|")):
            raise AssertionError(f"refused: {error}") from error
        program = leave_to_xla(module, str(error))
    assert_parts_equal(run(module, program, arguments), expected)
    return program


@functools.cache
def _lowered(case: "Case") -> tuple[bytes, tuple[np.ndarray, ...]]:
    module = lower(case.function, case.arguments)
    return module.as_serialized_hlo_module_proto(), tuple(values_of(case.function, case.arguments))


@dataclass(frozen=True, eq=False)
class Case:
    """A small program.

    Attributes:
        function: The program.
        arguments: What it is called with.
        refused: Words of the reasons for which it may be left to XLA's partitioner ("one|another"); None: it never may.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    refused: str | None = None

    def module(self) -> HloModule:
        """A new unoptimised module of the program (lowered once)."""
        return HloModule.from_serialized(_lowered(self)[0])

    def expected(self) -> tuple[np.ndarray, ...]:
        """What one device computes (once)."""
        return _lowered(self)[1]

    def assert_right_with_any_shardings(self, mesh: LogicalMesh, seed: int) -> PartitionedProgram:
        """With any sharding for every value, the devices compute what one device does."""
        module = annotate_randomly(self.module(), mesh, seed)
        return assert_partitioned_right(module, self.arguments, self.expected(), refused=self.refused)

    def assert_right_with_propagated_shardings(self, mesh: LogicalMesh, seed: int) -> PartitionedProgram:
        """With any shardings of the inputs, and what propagates from them, the devices compute what one device does."""
        module, rng = self.module(), random.Random(seed)
        inputs = [random_sharding(rng, mesh, shape.dims) for shape in module.shape.parameters]
        annotate(module, mesh, inputs)
        return assert_partitioned_right(module, self.arguments, self.expected(), refused=self.refused)


def seed_of(name: str) -> int:
    """A number of its own for each name, the same in every process."""
    return zlib.crc32(name.encode())
