"""Which profile a program has: programs that are equal by construction share one.

Takes a partitioned module and the devices it is to run on; gives the database's key and the text that it stands for.
Invariant: the text says everything that decides what is compiled, and nothing else: no names, no source locations.
"""

import json
import os
from collections.abc import Sequence
from typing import Any

import jaxlib

from alpa_cfp.database import ProfileKey
from alpa_on_jax.xla_extension import mlir
from alpa_on_jax.xla_extension.hlo_module import HloModule

# Flags that say how to look at or dump programs, and how many virtual devices there are (which the mesh says).
_WITHOUT_EFFECT = ("--xla_dump", "--xla_force_host_platform_device_count", "--xla_hlo_profile", "--xla_log")


def key_of(module: HloModule, devices: Sequence[Any]) -> tuple[ProfileKey, str]:
    """The key of a partitioned module on `devices`, and its canonical text.

    Args:
        module: A module with its partitioned program.
        devices: The devices in the order of the logical mesh.

    Raises:
        ValueError: the module is not partitioned.
    """
    text = canonical_text(module)
    assert module.partitioned is not None
    key = ProfileKey.of(
        text,
        mesh_shape=module.partitioned.mesh.shape,
        hosts=host_layout(devices),
        device_kind=devices[0].device_kind,
        jaxlib_version=jaxlib.__version__,
        xla_flags=code_flags(os.environ.get("XLA_FLAGS", "")),
    )
    return key, text


def canonical_text(module: HloModule) -> str:
    """What is compiled: the partitioner, which buffers are donated, where inputs and outputs lie, the program."""
    program = module.partitioned
    if program is None:
        raise ValueError("only a partitioned module has a profile: call partition on it first")
    with mlir.context():
        text = mlir.to_text(mlir.parse(program.bytecode))
    header = {
        "partitioner": program.partitioner,
        "donated": list(module.donated),
        "aliases": [list(pair) for pair in module.aliases],
        "inputs": [sharding.to_sdy() for sharding in program.input_shardings],
        "outputs": [sharding.to_sdy() for sharding in program.output_shardings],
    }
    return f"{json.dumps(header)}\n{text}"


def host_layout(devices: Sequence[Any]) -> str:
    """How many devices each host has, in the order of the mesh: "4+4" for two hosts of four."""
    counts: list[list[int]] = []
    for device in devices:
        if counts and counts[-1][0] == device.process_index:
            counts[-1][1] += 1
        else:
            counts.append([device.process_index, 1])
    return "+".join(str(count) for _, count in counts)


def code_flags(flags: str) -> str:
    """Those of `XLA_FLAGS` that may change the compiled code."""
    return " ".join(flag for flag in flags.split() if not flag.startswith(_WITHOUT_EFFECT))
