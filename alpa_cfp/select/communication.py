"""How long collectives take in the middle of a program, from small programs that are profiled like any other.

Takes a mesh; gives the programs and, from their profiles, its `CommunicationCosts`. A program repeats a product of
matrices and a collective that wait for each other. Beside it runs the same program with a local op in the place of the
collective (`spmd.partition.stand_ins`): the difference is what the collective takes where devices have other work to
do, which is not what it takes alone. The last programs have an all-reduce of several arrays: on CPUs each large one
waits for all devices, and small ones are copied into one; on GPUs they go as one. Invariant: a mesh is calibrated by
the same programs always, so once.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from alpa_cfp.analysis.graph import BARRIER
from alpa_cfp.costs import CommunicationCosts, Rates, crossing_bytes
from alpa_cfp.costs.communication import CollectiveKey, Curve
from alpa_cfp.database import Profile
from alpa_cfp.plan.caveats import Caveats
from alpa_cfp.select.profiles import failure_of
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Value
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.module.partitioned import PartitionedProgram, collectives_of_block
from alpa_cfp.spmd.partition.stand_ins import without_communication
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis, LogicalMesh

_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
# The bytes of a device's operand, the columns of it, and the side of the square matrices beside it.
_SIZES, _COLUMNS, _SIDE = (16_384, 1_048_576), 64, 160
_REPEATS = 4
# Standard deviations: of the time of such a program on a machine that is shared, relative to it, and of the latencies
# of kinds of collectives, relative to their mean. By six calibrations of eight CPU devices.
_NOISE, _KINDS_DIFFER = 0.05, 0.15
_REFERENCE_SIZE = 65_536
# The arrays of each all-reduce of several, and the bytes of each: the first are too large to be copied into one.
_SEVERAL = _LARGE, *_SMALL = (5, 131_072), (32, 4_096), (32, 32_768)


def communication_programs(mesh: LogicalMesh) -> list[HloModule]:
    """For each kind of collective, each group of axes and each size a program with it, and one with its stand-in.

    At the end stand the same two for each all-reduce of several arrays.
    """
    programs = []
    points = _points(mesh)
    several = [_program(mesh, "all-reduce", mesh.axes, size, arrays) for arrays, size in _SEVERAL if points]
    for program in [*(_program(mesh, *point) for point in points), *several]:
        programs += [program, replace(program)]
        assert program.partitioned is not None
        programs[-1].partitioned = without_communication(program.partitioned)
    return programs


def reference_programs(mesh: LogicalMesh) -> list[HloModule]:
    """The programs that tell how fast a mesh is at the moment: one that communicates and one that does not.

    The mean of their slowness is that of whole steps, which do both (see `Profiler`).
    """
    if mesh.num_devices == 1:
        return []
    program = _program(mesh, "all-reduce", mesh.axes, _REFERENCE_SIZE)
    alone = replace(program)
    assert program.partitioned is not None
    alone.partitioned = without_communication(program.partitioned)
    return [program, alone]


def communication_costs(
    mesh: LogicalMesh, profiles: Sequence[Profile | None], rates: Rates, caveats: Caveats | None = None
) -> CommunicationCosts:
    """The costs of collectives by the profiles of `communication_programs`.

    Args:
        mesh: The mesh.
        profiles: Of the programs, in their order; None for one without a profile.
        rates: The rates for what could not be measured.
        caveats: Receives what could not be measured.
    """
    points: dict[tuple[CollectiveKey, tuple[Axis, ...]], list[tuple[float, float]]] = {}
    taken_s, noise_s = list(map(_collective_s, profiles[::2], profiles[1::2])), dict[CollectiveKey, float]()
    for (kind, axes, size), profile, seconds in zip(_points(mesh), profiles[::2], taken_s, strict=False):
        if seconds is not None and profile is not None:
            key = CollectiveKey(kind, math.prod(axis.size for axis in axes))
            points.setdefault((key, axes), []).append((crossing_bytes(kind, size, key.group_size), seconds))
            if size == min(_SIZES):
                noise_s[key] = _NOISE * profile.lower_half_mean_s / _REPEATS
    found: dict[CollectiveKey, list[tuple[float, float]]] = {}
    for (key, _), both in points.items():
        if len(both) == len(_SIZES):
            found.setdefault(key, []).extend(both)
    missing = [profile for profile in profiles if profile is None or not profile.samples_s]
    if missing and caveats is not None:
        reasons = dict.fromkeys(failure_of(profile) or "no profile" for profile in missing)
        caveats.warn(
            f"{len(missing)} of {len(profiles)} programs that tell what collectives take could not be measured "
            f"({'; '.join(reasons)}): such collectives cost what others of their kind do, or what the link's rate says"
        )
    lines = with_common_latency({key: Curve.through(_mean(points)) for key, points in found.items()}, noise_s)
    exchanges = [(key.group_size, line) for key, line in lines.items() if key.kind == "all-to-all"]
    lines |= {CollectiveKey("collective-permute", group): line for group, line in exchanges}
    further_s = _further_s(mesh, lines, taken_s[-len(_SEVERAL) :])
    return CommunicationCosts(
        rates, lines, *_of_arrays(lines.get(CollectiveKey("all-reduce", mesh.num_devices)), further_s)
    )


def with_common_latency(
    lines: Mapping[CollectiveKey, Curve], noise_s: Mapping[CollectiveKey, float]
) -> dict[CollectiveKey, Curve]:
    """Returns the lines with latencies of which those of a group size have a part in common.

    A latency is a small difference of two times, so noise is much of it. What is returned lies between that and the
    mean of its group size, the nearer to the mean the more noise there is (a normal hierarchical model; Gelman et al.
    (2013), 5.4).

    Args:
        lines: The lines as they were measured.
        noise_s: The standard deviation of each latency.
    """
    found: dict[CollectiveKey, Curve] = {}
    for size in {key.group_size for key in lines}:
        own = [key for key in lines if key.group_size == size]
        latencies = np.array([lines[key].latency_s for key in own])
        between, noise = (_KINDS_DIFFER * latencies.mean()) ** 2, np.array([noise_s[key] for key in own]) ** 2
        weights = 1 / np.maximum(between + noise, 1e-18)
        mean = float(weights @ latencies / weights.sum())
        shares = between * weights
        found |= {
            key: replace(lines[key], latency_s=mean + float(share) * (lines[key].latency_s - mean))
            for key, share in zip(own, shares, strict=True)
        }
    return {key: found[key] for key in lines}


def _collective_s(with_it: Profile | None, without: Profile | None) -> float | None:
    """What one collective takes; None if it could not be measured."""
    if with_it is None or without is None or not (with_it.samples_s and without.samples_s):
        return None
    return max(with_it.lower_half_mean_s - without.lower_half_mean_s, 0.0) / _REPEATS


def _further_s(mesh: LogicalMesh, lines: Mapping[CollectiveKey, Curve], taken_s: Sequence[float | None]) -> list[float]:
    """How much longer each all-reduce of several arrays takes than one of a single array with all their bytes."""
    line = lines.get(CollectiveKey("all-reduce", mesh.num_devices))
    if line is None:
        return [0.0] * len(_SEVERAL)
    crossing = [crossing_bytes("all-reduce", arrays * size, mesh.num_devices) for arrays, size in _SEVERAL]
    single_s = line.latency_s + line.bytes_s(np.array(crossing))
    pairs = zip(taken_s, single_s, strict=True)
    return [0.0 if seconds is None else max(seconds - float(single), 0.0) for seconds, single in pairs]


def _of_arrays(line: Curve | None, further_s: Sequence[float]) -> tuple[float, float, float]:
    """What a further large array costs, as a share of the latency, what a small one does, and each of its bytes."""
    large_s, *small_s = further_s
    latency_s = 0.0 if line is None else line.latency_s
    share = min(large_s / ((_LARGE[0] - 1) * latency_s), 1.0) if latency_s > 0 else 0.0
    few, many = (size for _, size in _SMALL)
    least_s, most_s = (seconds / arrays for seconds, (arrays, _) in zip(small_s, _SMALL, strict=True))
    byte_s = max(most_s - least_s, 0.0) / (many - few)
    return share, max(least_s - few * byte_s, 0.0), byte_s


def _mean(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The mean seconds of each number of bytes; several groups of axes may have one size."""
    by_bytes: dict[float, list[float]] = {}
    for size, seconds in points:
        by_bytes.setdefault(size, []).append(seconds)
    return [(size, sum(seconds) / len(seconds)) for size, seconds in by_bytes.items()]


def _points(mesh: LogicalMesh) -> list[tuple[str, tuple[Axis, ...], int]]:
    """The kind, the axes and the bytes of each program."""
    if mesh.num_devices == 1:
        return []
    return list(product(_KINDS, _groups(mesh), _SIZES))


def _groups(mesh: LogicalMesh) -> list[tuple[Axis, ...]]:
    """The axes along which collectives are measured: of runs of adjacent axes of one size the outermost and the
    innermost one, whose links differ most; so their number grows with the sizes that there are.
    """
    by_size: dict[int, list[tuple[Axis, ...]]] = {}
    for axes in mesh.runs:
        by_size.setdefault(math.prod(axis.size for axis in axes), []).append(axes)
    measured = {axes for runs in by_size.values() for axes in (min(runs), max(runs))}
    return [axes for axes in mesh.runs if axes in measured]


def _program(mesh: LogicalMesh, kind: str, axes: tuple[Axis, ...], size: int, arrays: int = 1) -> HloModule:
    """A program that repeats a product of matrices and a collective of arrays of `size` bytes on each device."""
    group = math.prod(axis.size for axis in axes)
    rows = max(size // (4 * _COLUMNS * group), 1) * group
    with mlir.context(), ir.Location.unknown():
        made = ir.Module.create()
        real = ir.F32Type.get()
        moved, square = (ir.RankedTensorType.get(shape, real) for shape in ((rows, _COLUMNS), (_SIDE, _SIDE)))
        main, body = mlir.add_main(made, [moved, square], [moved, square])
        with ir.InsertionPoint(body):
            value, matrix = body.arguments
            weight = matrix
            for number in range(_REPEATS):
                matrix = _product(_plus_first(matrix, value), weight)
                value = _plus_first(value, matrix)
                values = [value]
                while len(values) < arrays:  # all different
                    values.append(stablehlo.add(values[-1], value))
                results = _made(_collective(kind, _made(values), mesh.groups(axes), number + 1))
                value = _restored(functools.reduce(stablehlo.add, results), rows)
            mlir.create("func.return", [], [value, matrix])
        bytecode = mlir.to_bytecode(made)
        collectives = collectives_of_block(mlir.entry_block(main))
    module = HloModule.from_stablehlo("communication", bytecode)
    shardings = (ArraySharding.replicated(mesh, 2),) * 2
    module.mesh, module.input_shardings, module.output_shardings = mesh, shardings, shardings
    module.solved = True
    module.partitioned = PartitionedProgram("shardy", bytecode, mesh, shardings, shardings, ((), ()), collectives)
    return module


def _product(matrix: Value, weight: Value) -> Value:
    numbers = stablehlo.DotDimensionNumbers.get([], [], [1], [0])
    return stablehlo.dot_general(matrix.type, matrix, weight, numbers)


def _plus_first(value: Value, other: Value) -> Value:
    """A value plus the first element of another one, so that it waits for that one."""
    first = stablehlo.reshape(
        ir.RankedTensorType.get((), ir.F32Type.get()), stablehlo.slice(other, [0, 0], [1, 1], [1, 1])
    )
    dims = ir.DenseI64ArrayAttr.get([])
    return stablehlo.add(value, stablehlo.broadcast_in_dim(value.type, first, dims))


def _collective(kind: str, values: Sequence[Value], groups: Sequence[Sequence[int]], channel: int) -> Sequence[Value]:
    """A collective of arrays of two dims, along the first."""
    rows, columns = mlir.tensor_shape(values[0])
    size = len(groups[0])
    attributes: dict[str, Any] = {"replica_groups": mlir.dense(np.array(groups, dtype=np.int64))}
    if kind != "all-to-all" and len(values) == 1:  # with a channel its groups would be of partitions
        handle = f"#stablehlo.channel_handle<handle = {channel}, type = 1>"
        attributes |= {"channel_handle": ir.Attribute.parse(handle), "use_global_device_ids": ir.UnitAttr.get()}
    shapes = {"all-gather": (rows * size, columns), "reduce-scatter": (rows // size, columns)}
    if kind == "all-gather":
        attributes["all_gather_dim"] = mlir.i64(0)
    elif kind == "reduce-scatter":
        attributes["scatter_dimension"] = mlir.i64(0)
    elif kind == "all-to-all":
        shapes[kind] = (rows // size, columns * size)
        attributes |= {"split_dimension": mlir.i64(0), "concat_dimension": mlir.i64(1), "split_count": mlir.i64(size)}
    result = ir.RankedTensorType.get(shapes.get(kind, (rows, columns)), ir.F32Type.get())
    reducer = "add" if kind in ("all-reduce", "reduce-scatter") else None
    name = f"stablehlo.{kind.replace('-', '_')}"
    return mlir.create(name, [result] * len(values), values, attributes, reducer=reducer).results


def _made(values: Sequence[Value]) -> Sequence[Value]:
    """Several values as they are in memory, so that none is computed while it is copied."""
    return mlir.create(BARRIER, [each.type for each in values], values).results if len(values) > 1 else values


def _restored(value: Value, rows: int) -> Value:
    """An array of (rows, columns) made of what a collective gives."""
    own, columns = mlir.tensor_shape(value)
    if columns != _COLUMNS:
        return stablehlo.reshape(ir.RankedTensorType.get((rows, _COLUMNS), ir.F32Type.get()), value)
    if own > rows:
        return stablehlo.slice(value, [0, 0], [rows, columns], [1, 1])
    return stablehlo.concatenate([value] * (rows // own), dimension=0) if own < rows else value
