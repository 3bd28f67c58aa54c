"""The links between the devices of a target, as the model of collectives takes them.

Takes a target; gives its `Interconnect`. Invariant: devices are numbered as in the target's meshes: hosts first, or
the coordinates of a torus row by row.
"""

from typing import Final

from alpa_cfp.targets.errors import TargetError
from alpa_cfp.targets.gpu_links import Generation
from alpa_cfp.targets.interconnect import GpuInterconnect, HostLink, Interconnect, Network, TorusInterconnect
from alpa_cfp.targets.target import Target

# The generations of GPUs whose constants NCCL has, by the first number of their compute capability.
_GENERATIONS: Final[dict[int, Generation]] = {8: "ampere", 9: "hopper", 10: "blackwell"}


def interconnect_of(target: Target) -> Interconnect:
    """The links of a target.

    Raises:
        TargetError: NCCL has no constants for a GPU of its generation, or it has no links.
    """
    chip, inner, outer = target.chip, target.chip.inner, target.chip.outer
    if chip.ici is not None and target.torus is not None:
        return TorusInterconnect(target.torus, chip.ici.rings(target.torus), chip.ici.bytes_per_s, chip.ici.latency_s)
    capability = "" if chip.architecture is None else chip.architecture.compute_capability
    generation = _GENERATIONS.get(int(capability.partition(".")[0] or 0))
    if generation is None or inner is None or outer is None:
        raise TargetError.no_links(chip.name, capability, tuple(_GENERATIONS))
    kind = "pcie" if inner.kind == "pcie" else "nvlink"
    within = HostLink(kind, inner.bytes_per_s, inner.extra_latency_s, reduces=inner.reduces)
    between = Network(outer.bytes_per_s * outer.shared_by, outer.extra_latency_s, outer.shared_by)
    return GpuInterconnect(generation, target.hosts, target.devices_per_host, within, between)
