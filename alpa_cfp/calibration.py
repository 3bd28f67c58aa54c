"""How fast a mesh is: rates from a few small programs that are profiled on it like any other.

Takes a mesh; gives the programs and, from their profiles, its `Rates`: what it takes to start a program and to hand it
arrays, and what an all-gather of little and of much takes. Invariant: a mesh is calibrated by the same programs always,
so once.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from alpa_cfp.costs import Rates
from alpa_cfp.database import Profile
from alpa_on_jax.xla_extension.hlo_module import HloModule
from alpa_on_jax.xla_extension.partition import partition_to_run
from alpa_on_jax.xla_extension.propagation import propagate
from alpa_on_jax.xla_extension.sharding import ArraySharding, LogicalMesh

_SMALL_ROWS, _LARGE_ROWS, _COLUMNS = 8, 4096, 256
_MANY = 32


def calibration_programs(mesh: LogicalMesh) -> list[HloModule]:
    """The programs: one and many arrays that stay where they are, and a small and a large one that are gathered."""
    split, whole = ArraySharding(mesh, (mesh.axes, ())), ArraySharding.replicated(mesh, 2)
    few = _rows(mesh, _SMALL_ROWS)
    idle = [_program(mesh, few, count, split, split) for count in (1, _MANY)]
    if mesh.num_devices == 1:
        return idle
    return idle + [_program(mesh, _rows(mesh, rows), 1, split, whole) for rows in (_SMALL_ROWS, _LARGE_ROWS)]


def rates_of(mesh: LogicalMesh, profiles: Sequence[Profile | None]) -> Rates:
    """The rates of `mesh` by the profiles of its calibration programs; the usual ones where one of them is missing."""
    usual = Rates()
    seconds = [profile.typical_s for profile in profiles if profile is not None and profile.status == "measured"]
    if len(seconds) < len(profiles):
        return usual
    one, many = seconds[:2]
    array = max(many - one, 0.0) / (2 * (_MANY - 1))
    rates = Rates(dispatch_s=max(one - 2 * array, 0.0), array_s=array)
    if mesh.num_devices == 1:
        return rates
    small, large = seconds[2:]
    part_bytes = [_rows(mesh, rows) // mesh.num_devices * _COLUMNS * 4 for rows in (_SMALL_ROWS, _LARGE_ROWS)]
    gathered = (mesh.num_devices - 1) * (part_bytes[1] - part_bytes[0])
    return Rates(
        dispatch_s=rates.dispatch_s,
        array_s=rates.array_s,
        latency_s=max(small - one, 1e-6),
        link_bytes_per_s=gathered / max(large - small, 1e-9),
    )


def _rows(mesh: LogicalMesh, rows: int) -> int:
    return max(1, rows // mesh.num_devices) * mesh.num_devices


def _program(mesh: LogicalMesh, rows: int, count: int, source: ArraySharding, target: ArraySharding) -> HloModule:
    """A program that brings `count` arrays of `rows` rows from one sharding to another."""
    argument = jax.ShapeDtypeStruct((rows, _COLUMNS), jnp.float32)
    lowered = jax.jit(lambda *arrays: tuple(array + 1 for array in arrays)).trace(*[argument] * count).lower()
    module = HloModule.from_stablehlo("calibration", str(lowered.compiler_ir("stablehlo")))
    module.output_protos = (target.to_proto().SerializeToString(),) * count
    propagate(module, mesh, to_outputs=True, inputs=[source] * count)
    module.solved = True
    module.partitioned = partition_to_run(module)
    return module
