"""From a program to its ParallelBlocks: what can be partitioned together, found by Shardy's sharding rules.

`read_graph` takes StableHLO and gives a `Graph`; `find_blocks` takes a graph and gives its `Blocks`. The modules in
the order in which they run: `rules`, `graph`, `reading` (StableHLO to Python values), `structure` (what is computed
twice), `contractions`, `gradients` (which of them share an iteration space), `block_builder` (the ops that a partition
of them passes without communication), `glue` (all other ops), `loops` (bodies of loops, with their backward passes),
`blocks`.
"""

from alpa_cfp.analysis.blocks import BlockFactor, Blocks, Entry, LoopBlocks, Output, ParallelBlock, find_blocks
from alpa_cfp.analysis.contractions import Side
from alpa_cfp.analysis.graph import Graph, Loop, Op, Value
from alpa_cfp.analysis.loops import Iteration
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.analysis.rules import FactorKind, Rule

__all__ = [
    "BlockFactor",
    "Blocks",
    "Entry",
    "FactorKind",
    "Graph",
    "Iteration",
    "Loop",
    "LoopBlocks",
    "Op",
    "Output",
    "ParallelBlock",
    "Rule",
    "Side",
    "Value",
    "find_blocks",
    "read_graph",
]
