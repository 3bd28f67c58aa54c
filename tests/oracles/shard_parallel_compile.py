"""A case of Alpa's `shard_parallel` tests, and what Alpa makes of its program on 4 devices.

Takes a case; gives the ILP's objective, the collectives of the partitioned and of the compiled program, and how the new
state lies on the mesh. Invariant: a case is compiled once a process and never run.
"""

import math
from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest import mock

import alpa
import jax
from alpa.util import count_communication_primitives
from jax.interpreters import pxla

from alpa_cfp.spmd.ir import mlir
from alpa_on_jax.xla_extension import pass_context
from oracles.shard_parallel_programs import Program

Shape = tuple[int, int]
Counts = Mapping[str, Container[int]]
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
# Alpa's tests count without the sums of scalars where XLA's combiner may leave them alone.
SCALAR_BYTES = 4
SOME = range(1, 1000)
ANY = range(1000)


@dataclass(frozen=True)
class Partition:
    """How an array lies on the mesh.

    Attributes:
        chunks: Into how many parts each dim is cut.
        replicas: How many devices hold each part.
    """

    chunks: tuple[int, ...]
    replicas: int


COLUMNS, ROWS, WHOLE = Partition((1, 4), 1), Partition((4, 1), 1), Partition((1, 1), 4)
HALF_COLUMNS, HALF_ROWS = Partition((1, 2), 2), Partition((2, 1), 2)
EXPERTS = Partition((4, 1, 1), 1)


@dataclass(frozen=True, eq=False)
class Case:
    """One program, how it is to be parallelized, and what Alpa's tests expect of it.

    Attributes:
        name: What the case is.
        program: Makes the program.
        mesh: The shape of the logical mesh.
        counts: For each kind of collective how many there may be; none of the kinds that are not named.
        objective: The total cost that the ILP finds, or the formula for it; None where the tests state none.
        objective_tolerance: How far from it the objective may be, relative.
        alpha, beta: Latency and inverse bandwidth of the mesh's axes.
        options: Fields of alpa's `AutoShardingOption`.
        partitions: How the parameters lie whose path ends as given.
        iotas: Shapes that iotas of one device's program have.
        split: Which leaves of the new state are on no two devices alike in whole: "optimizer" those of the optimizer
            that have dims, "matrices" all matrices of parameters and optimizer, "optimizer matrices" (these must be
            split over all devices).
        may_be_whole: How many of these may be whole nevertheless.
        whole_parameters: Whether each device has all parameters as a whole.
        ignores_scalars: Whether sums of scalars are not counted.
    """

    name: str
    program: Callable[[], Program]
    mesh: Shape
    counts: Counts
    objective: float | Callable[[Program], float] | None = None
    objective_tolerance: float = 0.01
    alpha: tuple[float, float] = (1, 1)
    beta: tuple[float, float] = (1, 1)
    options: Mapping[str, Any] = field(default_factory=dict)
    partitions: tuple[tuple[tuple[str, ...], Partition], ...] = ()
    iotas: frozenset[tuple[int, ...]] = frozenset()
    split: str = ""
    may_be_whole: int = 0
    whole_parameters: bool = False
    ignores_scalars: bool = False

    def __str__(self) -> str:
        return f"{self.name}-{self.mesh[0]}x{self.mesh[1]}"


@dataclass(frozen=True)
class Compiled:
    """What Alpa made of a case.

    Attributes:
        objective: The ILP's.
        partitioner: Which partitioner made the program: see `PartitionedProgram`.
        partitioned: The collectives of the partitioned program by kind, those that count (see `ignores_scalars`).
        all_partitioned: All of them.
        compiled: All collectives of the optimised HLO, as alpa counts them.
        iotas: The shapes of the iotas in one device's program.
        state: The new state with alpa's sharding specs as leaves.
        shapes: The new state with shapes and dtypes as leaves.
    """

    objective: float
    partitioner: str
    partitioned: Counter[str]
    all_partitioned: Counter[str]
    compiled: Counter[str]
    iotas: frozenset[tuple[int, ...]]
    state: Any
    shapes: Any


@cache
def compile_case(case: Case) -> Compiled:
    """Parallelize the program of `case` over 4 devices."""
    program = case.program()
    mesh = alpa.LocalPhysicalDeviceMesh(jax.local_devices()[:4]).get_logical_mesh(case.mesh, case.alpha, case.beta)
    method = alpa.ShardParallel(devices=mesh, auto_sharding_option=alpa.AutoShardingOption(**case.options))
    # Alpa's compiler copied nothing to scatter arrays together, so its tests count all sums of a kind as one.
    with mock.patch.object(pass_context, "SCATTERED_TOGETHER_BYTES", 1 << 60):
        executable: Any = alpa.parallelize(program.step, method=method).get_executable(program.state, program.batch)
    made = executable.compiled.program
    counted = [c.kind for c in made.collectives if not (case.ignores_scalars and c.size_bytes <= SCALAR_BYTES)]
    in_hlo = count_communication_primitives(executable.get_hlo_text())
    shapes = jax.eval_shape(program.step, program.state, program.batch)
    specs = jax.tree.unflatten(jax.tree.structure(shapes), executable.output_sharding_specs)
    compiled = Counter(dict(zip(KINDS, in_hlo[1:], strict=True)))
    objective = executable.auto_sharding_objective
    everything = Counter(c.kind for c in made.collectives)
    iotas = _iotas(made.bytecode)
    return Compiled(objective, made.partitioner, Counter(counted), everything, compiled, iotas, specs, shapes)


def _iotas(bytecode: bytes) -> frozenset[tuple[int, ...]]:
    with mlir.context():
        module = mlir.parse(bytecode)  # lives as long as its ops are read
        ops = mlir.block_operations(mlir.entry_block(mlir.main_function(module)))
        return frozenset(mlir.tensor_shape(op.results[0]) for op in ops if op.name == "stablehlo.iota")


def partition_of(spec: pxla.ShardingSpec) -> Partition:
    """A sharding spec of alpa's as a partition."""
    chunks = tuple(math.prod(dim.chunks) if isinstance(dim, pxla.Chunked) else 1 for dim in spec.sharding)
    return Partition(chunks, math.prod(m.replicas for m in spec.mesh_mapping if isinstance(m, pxla.Replicated)))


def parameters_under(compiled: Compiled, keys: tuple[str, ...]) -> list[Partition]:
    """The partitions of the parameters whose path ends with `keys`."""
    leaves = jax.tree_util.tree_flatten_with_path(compiled.state.params)[0]
    return [
        partition_of(spec)
        for path, spec in leaves
        if tuple(str(getattr(entry, "key", entry)) for entry in path)[-len(keys) :] == keys
    ]


def partitions_by_rank(specs: Any, shapes: Any) -> list[tuple[int, Partition]]:
    """The rank and the partition of each leaf."""
    pairs = zip(jax.tree.leaves(specs), jax.tree.leaves(shapes), strict=True)
    return [(len(shape.shape), partition_of(spec)) for spec, shape in pairs]
