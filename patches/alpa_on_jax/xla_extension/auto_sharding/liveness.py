"""The live values while each contraction runs, which the memory budget of the ILP counts.

Alpa limits the memory of the values that are live at each dot and convolution, in the order in which a scheduler of XLA
would run the program. Here the order is that of the program, as JAX traced it.
"""

from collections.abc import Sequence

from alpa_on_jax.xla_extension.auto_sharding.graph import Graph, Instruction

# Alpa bounds the memory at these ops alone: everything else is small beside them.
_CHECKED = ("dot_general", "convolution")


def live_values(graph: Graph) -> list[Sequence[Instruction]]:
    """For each instruction, the values that are live when it runs; empty for those that are not checked.

    A value lives from its op to its last user, parameters from the start, and results of the program to the end. A
    value that goes through a marker is the same buffer before and behind it.
    """
    end = len(graph.instructions)
    last_use = {
        instruction: end if instruction.is_output else max((user.index for user in instruction.users), default=-1)
        for instruction in graph.instructions
    }
    live: dict[Instruction, None] = dict.fromkeys(graph.parameters)
    result: list[Sequence[Instruction]] = []
    for instruction in graph.instructions:
        live[instruction] = None
        result.append(tuple(live) if instruction.opcode in _CHECKED else ())
        for operand in (*instruction.operands, instruction):
            if last_use[operand] <= instruction.index:
                live.pop(operand, None)
    return result
