"""Keys of profiles: programs that are equal by construction share one profile.

Takes a partitioned module and a description of the devices that it is to run on; gives the database's key and the
canonical text behind it. Invariant: the text contains everything that affects the compiled code, and nothing else: no
names, no source locations. The devices themselves are not needed, so a key can be made where there are none.
"""

import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jaxlib

from alpa_cfp.database import ProfileKey
from alpa_cfp.spmd.compile.joined_arrays import is_joined
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.hlo_module import HloModule

# Flags that inspect or dump programs, or set the number of virtual devices (which is in the mesh).
_WITHOUT_EFFECT = ("--xla_dump", "--xla_force_host_platform_device_count", "--xla_hlo_profile", "--xla_log")


@dataclass(frozen=True, slots=True, order=True)
class DeviceDescription:
    """The devices of a profile's key, and the compiler for them.

    Attributes:
        device_kind: JAX's name of the devices.
        hosts: The number of devices of each host, in the order of the mesh: "4+4" for two hosts of four.
        jaxlib_version: The compiler's version.
        xla_flags: Those of XLA_FLAGS that may change the compiled code.
    """

    device_kind: str
    hosts: str
    jaxlib_version: str
    xla_flags: str = ""

    @classmethod
    def of(cls, devices: Sequence[Any]) -> "DeviceDescription":
        """The description of devices of this process, in the order of the logical mesh."""
        hosts = host_layout([device.process_index for device in devices])
        return cls.compiled_here(devices[0].device_kind, hosts, os.environ.get("XLA_FLAGS", ""))

    @classmethod
    def compiled_here(cls, device_kind: str, hosts: str, xla_flags: str) -> "DeviceDescription":
        """The description of devices for which this process' jaxlib compiles with these XLA_FLAGS."""
        return cls(device_kind, hosts, jaxlib.__version__, code_flags(xla_flags))

    @classmethod
    def of_key(cls, key: ProfileKey) -> "DeviceDescription":
        """The description of the devices that a profile was made on."""
        return cls(key.device_kind, key.hosts, key.jaxlib_version, key.xla_flags)

    def __str__(self) -> str:
        """The devices as errors show them."""
        flags = f", XLA_FLAGS={self.xla_flags!r}" if self.xla_flags else ""
        return f"{self.device_kind} (hosts {self.hosts}, jaxlib {self.jaxlib_version}{flags})"


def key_of(module: HloModule, devices: DeviceDescription) -> tuple[ProfileKey, str]:
    """The key of a partitioned module on `devices`, and its canonical text.

    Raises:
        ValueError: the module is not partitioned.
    """
    text = canonical_text(module)
    assert module.partitioned is not None
    key = ProfileKey.of(
        text,
        mesh_shape=module.partitioned.mesh.shape,
        hosts=devices.hosts,
        device_kind=devices.device_kind,
        jaxlib_version=devices.jaxlib_version,
        xla_flags=devices.xla_flags,
    )
    return key, text


def canonical_text(module: HloModule) -> str:
    """The text of all that is compiled: partitioner, donated buffers, shardings of inputs and outputs, program."""
    program = module.partitioned
    if program is None:
        raise ValueError("only a partitioned module has a profile: call partition on it first")
    with mlir.context():
        parsed = mlir.parse(program.bytecode)
        text, compiled_as = mlir.to_text(parsed), {"small_arrays": "joined"} if is_joined(parsed) else {}
    header = compiled_as | {
        "partitioner": program.partitioner,
        "donated": list(module.donated),
        "aliases": [list(pair) for pair in module.aliases],
        "inputs": [sharding.to_sdy() for sharding in program.input_shardings],
        "outputs": [sharding.to_sdy() for sharding in program.output_shardings],
    }
    return f"{json.dumps(header)}\n{text}"


def host_layout(hosts: Sequence[int]) -> str:
    """The number of devices of each host, from the host of each device of the mesh: "4+4" for two hosts of four."""
    return "+".join(str(len(list(devices))) for _, devices in itertools.groupby(hosts))


def code_flags(flags: str) -> str:
    """The flags of `XLA_FLAGS` that may change the compiled code."""
    return " ".join(flag for flag in flags.split() if not flag.startswith(_WITHOUT_EFFECT))
