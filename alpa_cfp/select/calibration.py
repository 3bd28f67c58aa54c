"""How fast a mesh is: rates from a few small programs that are profiled on it like any other.

Takes a mesh; gives the programs and, from their profiles, its `Rates`: what it takes to start a program and to hand it
arrays, and what an all-gather of little and of much takes. Invariant: a mesh is calibrated by the same programs always,
so once.
"""

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp

from alpa_cfp.costs import Rates
from alpa_cfp.database import Profile
from alpa_cfp.plan.caveats import Caveats
from alpa_cfp.select.profiles import failure_of
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import partition_to_run
from alpa_cfp.spmd.propagation import propagate
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh

_SMALL_ROWS, _LARGE_ROWS, _COLUMNS = 8, 4096, 256
_MANY = 32
# What rates are called, and in what they are.
_SAID = {
    "dispatch_s": "starting a program",
    "array_s": "handing over an array",
    "latency_s": "the latency of a collective",
    "link_bytes_per_s": "the link",
}
_UNITS = {"dispatch_s": "s", "array_s": "s", "latency_s": "s", "link_bytes_per_s": "bytes/s"}


def calibration_programs(mesh: LogicalMesh) -> list[HloModule]:
    """The programs: one and many arrays that stay where they are, and a small and a large one that are gathered."""
    split, whole = ArraySharding(mesh, (mesh.axes, ())), ArraySharding.replicated(mesh, 2)
    few = _rows(mesh, _SMALL_ROWS)
    idle = [_program(mesh, few, count, split, split) for count in (1, _MANY)]
    if mesh.num_devices == 1:
        return idle
    return idle + [_program(mesh, rows, 1, split, whole) for rows in _gathered_rows(mesh)]


def rates_of(mesh: LogicalMesh, profiles: Sequence[Profile | None], caveats: Caveats | None = None) -> Rates:
    """The rates of `mesh` by the profiles of its calibration programs.

    What a program that is missing would have said is as in `Rates()`, the rates of some CPU, with a warning.

    Args:
        mesh: The mesh.
        profiles: Of `calibration_programs`, in their order; None where there is none.
        caveats: Where what is missing is said.
    """
    caveats, usual = Caveats() if caveats is None else caveats, Rates()
    one, many, small, large = map(_seconds, (*profiles, None, None)[:4])
    array_s = None if one is None or many is None else max(many - one, 0.0) / (2 * (_MANY - 1))
    # Without the program of many arrays, what one costs is in the time to start a program.
    dispatch_s = None if one is None else max(one - 2 * (array_s or 0.0), 0.0)
    found: dict[str, float | None] = {"dispatch_s": dispatch_s, "array_s": array_s}
    if mesh.num_devices > 1:
        found["latency_s"] = None if one is None or small is None else max(small - one, 1e-6)
        part_bytes = [rows // mesh.num_devices * _COLUMNS * 4 for rows in _gathered_rows(mesh)]
        if small is not None and large is not None:
            gathered, seconds = part_bytes[1] - part_bytes[0], large - small
        elif one is not None and large is not None:  # with the latency in it: the link is a little faster
            gathered, seconds = part_bytes[1], large - one
        else:
            gathered, seconds = 0, None
        found["link_bytes_per_s"] = None if seconds is None else (mesh.num_devices - 1) * gathered / max(seconds, 1e-9)
    failures = [failure_of(profile) or "no profile" for profile in profiles if _seconds(profile) is None]
    if failures:
        usually = [
            f"{_SAID[name]} is taken to be {getattr(usual, name):.3g} {_UNITS[name]}, as of some CPU"
            for name, value in found.items()
            if value is None
        ]
        caveats.warn(
            f"{len(failures)} of {len(profiles)} programs that tell how fast the mesh is could not be measured "
            f"({'; '.join(dict.fromkeys(failures))}): {'; '.join(usually) or 'the others make up for it'}"
        )
    return replace(usual, **{name: value for name, value in found.items() if value is not None})


def _seconds(profile: Profile | None) -> float | None:
    return profile.lower_half_mean_s if profile is not None and profile.status == "measured" else None


def _gathered_rows(mesh: LogicalMesh) -> tuple[int, int]:
    """The rows that the small and the large program gather: twice as many at least, however many devices there are."""
    small = _rows(mesh, _SMALL_ROWS)
    return small, max(2 * small, _rows(mesh, _LARGE_ROWS))


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
