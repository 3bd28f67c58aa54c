"""How fast the mesh communicates: rates from a few measured collectives.

Takes a mesh and its client; gives `Rates`. An all-gather of little and one of much over the whole mesh are measured;
they are profiles like any other, so a mesh is calibrated once.
"""

import jax
import jax.numpy as jnp

from alpa_cfp.costs import Rates
from alpa_cfp.database import ProfileDatabase
from alpa_cfp.profiling.measure import MeasureOptions, measure
from alpa_on_jax.xla_extension.executable import Client
from alpa_on_jax.xla_extension.hlo_module import HloModule
from alpa_on_jax.xla_extension.partition import partition_to_run
from alpa_on_jax.xla_extension.propagation import propagate
from alpa_on_jax.xla_extension.sharding import ArraySharding, LogicalMesh

_SMALL_ROWS, _LARGE_ROWS, _COLUMNS = 8, 4096, 256


def calibrate(mesh: LogicalMesh, client: Client, database: ProfileDatabase, options: MeasureOptions) -> Rates:
    """The rates of `mesh`."""
    devices = mesh.num_devices
    if devices == 1:
        return Rates()
    split = ArraySharding(mesh, (mesh.axes, ()))
    whole = ArraySharding.replicated(mesh, 2)
    rows = [max(1, rows // devices) * devices for rows in (_SMALL_ROWS, _LARGE_ROWS)]
    small, large = measure([_moved(count, split, whole) for count in rows], client, database, options)
    if "failed" in (small.status, large.status):
        return Rates()
    part_bytes = [count // devices * _COLUMNS * 4 for count in rows]
    seconds = max(large.minimum_s - small.minimum_s, 1e-9)
    link = (devices - 1) * (part_bytes[1] - part_bytes[0]) / seconds
    return Rates(latency_s=small.minimum_s, link_bytes_per_s=link)


def _moved(rows: int, source: ArraySharding, target: ArraySharding) -> HloModule:
    """A program that brings an array of `rows` rows from one sharding to another."""
    argument = jax.ShapeDtypeStruct((rows, _COLUMNS), jnp.float32)
    lowered = jax.jit(lambda x: x + 1).trace(argument).lower()
    module = HloModule.from_stablehlo("moved", str(lowered.compiler_ir("stablehlo")))
    module.output_protos = (target.to_proto().SerializeToString(),)
    propagate(module, source.mesh, to_outputs=True, inputs=[source])
    module.solved = True
    module.partitioned = partition_to_run(module)
    return module
