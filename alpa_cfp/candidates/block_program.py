"""The partitioned program of a block under a strategy.

Takes the subprogram of a block; gives one device's program. Rematerialisation hands values on behind barriers, so a
block's subprogram may have a value twice, as a result and as a parameter, or as two parameters (`Tie`): what is on one
side of the barriers is then not connected with what is split on the other, and sharding propagation would leave it
whole. So it starts there, too. Invariant: places of one value have one sharding, unless the strategy splits them
differently.
"""

from collections.abc import Sequence
from dataclasses import replace

from alpa_cfp.apply.annotate import Starts, annotate
from alpa_cfp.extraction.extractor import Subprogram
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import partition_to_run
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy

# A value that becomes known on one side of a barrier may be what another one is computed from.
_ROUNDS = 2


def partitioned(
    subprogram: Subprogram,
    mesh: LogicalMesh,
    strategy: BlockStrategy,
    used: Sequence[ArraySharding] | None = None,
    outputs: Sequence[ArraySharding] | None = None,
) -> HloModule:
    """Returns the module of a block, annotated and partitioned.

    Args:
        subprogram: The subprogram of the block.
        mesh: The logical mesh.
        strategy: The strategy.
        used, outputs: The shardings of its parameters and results under the same strategy with
            `StateSharding.REPLICATED`; None if they are not known yet.
    """
    starts = Starts() if used is None or outputs is None else _starts(subprogram, used, outputs)
    module = _annotated(subprogram, mesh, strategy, used, starts)
    for _ in range(_ROUNDS if used is None else 0):
        assert module.input_shardings is not None
        assert module.output_shardings is not None
        known = _starts(subprogram, module.input_shardings, module.output_shardings)
        if known == starts:
            break
        starts = known
        module = _annotated(subprogram, mesh, strategy, used, starts)
    module.partitioned = partition_to_run(module, predicts=True)
    return module


def _annotated(
    subprogram: Subprogram,
    mesh: LogicalMesh,
    strategy: BlockStrategy,
    used: Sequence[ArraySharding] | None,
    starts: Starts,
) -> HloModule:
    module = replace(subprogram.module)
    annotate(module, subprogram.blocks, mesh, [strategy], used, starts=starts)
    return module


def _starts(subprogram: Subprogram, inputs: Sequence[ArraySharding], outputs: Sequence[ArraySharding]) -> Starts:
    """Where propagation has to start, too, for values that are whole in one place and split in another."""
    graph, of_inputs, of_ops = subprogram.blocks.graph, dict[int, ArraySharding](), dict[int, ArraySharding]()
    for tie in subprogram.ties:
        places = [*(inputs[number] for number in tie.inputs), *(outputs[number] for number in tie.outputs)]
        split = max(places, key=lambda sharding: len(sharding.axes))
        if not split.axes:
            continue
        of_inputs |= {number: split for number in tie.inputs if not inputs[number].axes or inputs[number] == split}
        for number in tie.outputs:
            op = graph.values[graph.results[number]].op
            if op is not None and len(graph.ops[op].results) == 1 and not set(outputs[number].axes) - set(split.axes):
                of_ops[op] = split
    return Starts(of_inputs, of_ops)
