"""How deep in the program each value stands: what an op prefers to follow where its operands could be split alike.

Takes a graph and its batch dims, gives a number for each instruction, in program order. The weights are those of
`BuildInstructionDepthMap` in tensorflow-alpa's auto_sharding_util.cc: contractions count much, a reduction starts anew
and a broadcast goes back, since what follows them could not be split well.
"""

from alpa_on_jax.xla_extension.auto_sharding.batch_dims import BatchDims
from alpa_on_jax.xla_extension.auto_sharding.graph import Graph, Instruction

_ACTIVATION_DEPTH = 20
_STEP = {"dot_general": 1000, "convolution": 1000, "broadcast_in_dim": -5, "reshape": 0}


def find_depths(graph: Graph, batch: BatchDims) -> dict[Instruction, int]:
    """The depth of each instruction of `graph`."""
    depths: dict[Instruction, int] = {}
    for instruction in graph.instructions:
        if not instruction.operands:
            depths[instruction] = _ACTIVATION_DEPTH if is_activation(instruction, batch) else 0
        elif instruction.opcode == "reduce":
            depths[instruction] = 0
        elif instruction.opcode in ("marker", "result"):
            depths[instruction] = depths[instruction.operands[0]]
        else:
            step = _STEP.get(instruction.opcode, 1)
            depths[instruction] = max(depths[operand] for operand in instruction.operands) + step
    return depths


def is_activation(instruction: Instruction, batch: BatchDims) -> bool:
    """Whether a parameter is an activation that comes from another stage: it has a batch dim and starts stages only.

    Integers are token or position ids, which come from outside.
    """
    return (
        instruction.opcode == "parameter"
        and instruction in batch
        and not instruction.is_integer
        and all(user.opcode == "marker" and user.stage.endswith("$start") for user in instruction.users)
    )
