"""What plans are made for: so many devices of a chip, and how they are joined. None of them has to exist here.

Takes a text such as "h100:4x8" (hosts x devices of each) or "v5p:2x2x2" (the chips' torus); gives a `Target`.
Invariant: a target that can be made has devices that can be bought: no host with more GPUs than its links join, no
slice of a shape that there is not.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from jax.sharding import AbstractMesh, AxisType

from alpa_cfp import quantities
from alpa_cfp.spmd.shardings.sharding import AXIS_NAMES
from alpa_cfp.targets.chip_fields import sizes_of
from alpa_cfp.targets.chips import Chip, SliceShapes
from alpa_cfp.targets.errors import TargetError

_GPU_SIZES = 2


@dataclass(frozen=True, slots=True)
class Target:
    """So many devices of a chip, on hosts.

    Attributes:
        name: As it was asked for: "h100:1x8".
        chip: The devices.
        hosts: The number of hosts.
        devices_per_host: The devices of each.
        torus: The shape of a TPU's slice; None for GPUs.
    """

    name: str
    chip: Chip
    hosts: int
    devices_per_host: int
    torus: tuple[int, ...] | None = None

    @classmethod
    def of(cls, chip: Chip, sizes: str) -> "Target":
        """Devices of a chip: hosts x devices of each for GPUs, the shape of a slice for TPUs.

        Raises:
            TargetError: the sizes are none, or such a machine does not exist.
        """
        name = f"{chip.name}:{sizes}"
        shape = sizes_of(sizes)
        if shape is None:
            raise TargetError.malformed(name, f"{sizes!r} are no sizes, which are whole numbers with an x between them")
        if chip.slices is not None:
            return cls._slice(name, chip, chip.slices, shape)
        if len(shape) != _GPU_SIZES:
            raise TargetError.malformed(name, f"GPUs have {_GPU_SIZES} sizes, hosts x devices of each")
        hosts, devices = shape
        if devices > chip.most_devices_per_host:
            raise TargetError.too_many_devices(chip.name, devices, chip.most_devices_per_host)
        return cls(name, chip, hosts, devices)

    @classmethod
    def from_file(cls, path: Path | str, sizes: str) -> "Target":
        """Devices of the chip that a file describes (`Chip.from_file`).

        Raises:
            TargetError: the file or the sizes are wrong.
        """
        return cls.of(Chip.from_file(path), sizes)

    @classmethod
    def _slice(cls, name: str, chip: Chip, slices: SliceShapes, shape: tuple[int, ...]) -> "Target":
        if len(shape) != len(slices.host):
            raise TargetError.malformed(name, f"a slice of {chip.name} has {len(slices.host)} sizes, one for each dim")
        if not slices.has(shape):
            ascending = tuple(sorted(shape))
            # Some shapes are named in another order: the smallest size of 2x2x1 is last.
            turned = [each for each in (ascending, *slices.shapes) if sorted(each) == list(ascending)]
            instead = next((quantities.shape(each) for each in turned if slices.has(each)), None)
            raise TargetError.no_slice(chip.name, quantities.shape(shape), slices.described(), instead)
        devices = prod(slices.host_of(shape))
        return cls(name, chip, prod(shape) // devices, devices, shape)

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return self.hosts * self.devices_per_host

    def mesh(self, shape: Sequence[int] = (), axis_names: Sequence[str] = ()) -> "TargetMesh":
        """A mesh of all devices, for `autoshard`.

        Args:
            shape: The sizes of its axes; empty for one axis.
            axis_names: Their names; empty for "x", "y" and so on.

        Raises:
            TargetError: the sizes are not those of the target's devices, or there are not as many names as sizes.
        """
        sizes = tuple(shape) or (self.num_devices,)
        names = tuple(axis_names) or AXIS_NAMES[: len(sizes)]
        if prod(sizes) != self.num_devices or len(names) != len(sizes):
            raise TargetError.no_mesh(self.name, self.num_devices, sizes, names)
        return TargetMesh(self, sizes, names)


@dataclass(frozen=True, slots=True)
class TargetMesh:
    """The devices of a target along some axes, in row-major order. Nothing can run on it: plans are made for it.

    Attributes:
        target: The target.
        axis_sizes: The sizes of the axes.
        axis_names: Their names.
    """

    target: Target
    axis_sizes: tuple[int, ...]
    axis_names: tuple[str, ...]

    @property
    def abstract(self) -> AbstractMesh:
        """The same axes, without devices."""
        return AbstractMesh(self.axis_sizes, self.axis_names, axis_types=(AxisType.Auto,) * len(self.axis_names))

    @property
    def axis_types(self) -> tuple[AxisType, ...]:
        """The type of each axis in JAX."""
        return self.abstract.axis_types

    @property
    def size(self) -> int:
        """The number of devices."""
        return self.target.num_devices


def target(text: str) -> Target:
    """The target that a text names: a chip, or the path of a chip's file, then a colon and sizes.

    Args:
        text: "h100:1x8", "a100:4x8" (hosts x devices of each); "v5e:4x4", "v5p:2x2x2" (the chips' torus);
            "my_chip.toml:2x8".

    Raises:
        TargetError: no such chip, or machine, or the chip's file is wrong.
    """
    if not isinstance(text, str):
        raise TargetError.malformed(text, "it is no text")
    # The last colon: a path may have others.
    name, colon, sizes = text.strip().rpartition(":")
    if not colon or not name:
        raise TargetError.malformed(text, "it has no chip or no sizes")
    is_path = name.endswith(".toml") or os.sep in name or "/" in name
    return Target.of(Chip.from_file(Path(name).expanduser()) if is_path else Chip.named(name.lower()), sizes.lower())
