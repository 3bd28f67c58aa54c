"""What a mesh computes and communicates in how long: its rates and the costs of its collectives, as calibrated.

Takes a mesh and a source of profiles; gives both from the programs that calibrate any program's planning. Invariant: a
mesh is calibrated by the same programs always.
"""

from collections.abc import Sequence

from alpa_cfp.costs import CommunicationCosts, Rates
from alpa_cfp.plan.caveats import Caveats
from alpa_cfp.select.calibration import calibration_programs, rates_of
from alpa_cfp.select.communication import communication_costs, communication_programs
from alpa_cfp.select.profile_source import ProfileSource
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings.sharding import LogicalMesh

MeshPrograms = tuple[Sequence[HloModule], Sequence[HloModule]]


def mesh_programs(mesh: LogicalMesh) -> MeshPrograms:
    """Returns the programs that tell the rates of a mesh, and those that tell what its collectives take."""
    return calibration_programs(mesh), communication_programs(mesh)


def mesh_costs(
    mesh: LogicalMesh, profiles: ProfileSource, caveats: Caveats | None = None, programs: MeshPrograms | None = None
) -> tuple[Rates, CommunicationCosts]:
    """Returns the rates of a mesh, and the costs of its collectives.

    Args:
        mesh: The mesh.
        profiles: The source of profiles.
        caveats: Receives what could not be measured.
        programs: Those of `mesh_programs`; None to make them.
    """
    computing, communicating = programs or mesh_programs(mesh)
    rates = rates_of(mesh, profiles(computing), caveats)
    return rates, communication_costs(mesh, profiles(communicating), rates, caveats)
