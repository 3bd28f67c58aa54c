"""The collectives of a scheduled program: which instructions they are, and the groups of devices that take part.

Takes instructions; gives groups with the numbers of devices. Invariant: all ways to write groups that are known give
the same numbers for the same groups, and one that is not known is refused with its line.
"""

import re
from collections.abc import Sequence
from math import prod

import numpy as np

from alpa_cfp.spmd.compile.collectives import groups_on_mesh
from alpa_cfp.targets.errors import HloTextError
from alpa_cfp.targets.hlo_text import Computation, Instruction

Groups = tuple[tuple[int, ...], ...]

# What communicates, beside its -start and -done.
COLLECTIVES = frozenset(
    {
        *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
        *("collective-permute", "collective-broadcast"),
    }
)

_IOTA_GROUPS = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?$")
_GROUP = re.compile(r"\{([\d,]*)\}")


def replica_groups(instruction: Instruction, num_devices: int) -> Groups:
    """The groups of a collective, expanded; of a `collective-permute` the pairs (source, target).

    Groups in iota form, `[4,2]<=[2,4]T(1,0)`, are the devices 0, 1, ... in an array of the second shape, its dims in
    the order that `T` has, cut into rows of the first shape (openxla/xla, `xla/hlo/ir/tile_assignment.h`). Groups along
    axes, `mesh['x'=2,'y'=4] {'y'}`, are the rows of the devices in an array of the mesh's sizes along these axes.
    Without groups, all devices are one.

    Raises:
        HloTextError: they are written in another way.
    """
    if "source_target_pairs" in instruction.attributes:
        numbers = instruction.numbers("source_target_pairs")
        return tuple(zip(numbers[::2], numbers[1::2], strict=True))
    text = instruction.attributes.get("replica_groups", "{}")
    if text == "{}":
        return (tuple(range(num_devices)),)
    if iota := _IOTA_GROUPS.match(text):
        groups, devices, order = ([int(size) for size in (each or "").split(",") if size] for each in iota.groups())
        if prod(groups) == prod(devices) and sorted(order or range(len(devices))) == list(range(len(devices))):
            expanded = np.arange(prod(devices)).reshape(devices).transpose(order or None).reshape(-1, groups[-1])
            return tuple(tuple(map(int, row)) for row in expanded)
    elif (on_mesh := groups_on_mesh(text)) is not None:
        mesh, axes = on_mesh
        return tuple(map(tuple, mesh.groups(axes)))
    elif text.startswith("{{") and (found := _GROUP.findall(text[1:-1])):
        return tuple(tuple(map(int, group.split(","))) for group in found if group)
    raise HloTextError.at(instruction.line, text, "its replica_groups are written in a way that is not known")


def collective_of(computations: Sequence[Computation]) -> tuple[Computation, Instruction] | None:
    """The first collective in computations, with the one that it stands in."""
    for computation in computations:
        for each in computation.instructions:
            if each.opcode in COLLECTIVES:
                return computation, each
    return None
