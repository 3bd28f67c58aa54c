"""From a program to its ParallelBlocks: what can be partitioned together, found by Shardy's sharding rules.

`read_graph` takes StableHLO and gives a `Graph`; `find_blocks` takes a graph and gives its `Blocks`. The modules in
the order in which they run: `rules`, `graph`, `reading` (StableHLO to Python values), `structure` (what is computed
twice), `contractions`, `gradients` (which of them share an iteration space), `block_builder` (the ops that a partition
of them passes without communication; `partial_block`, `extension`), `siblings` (which of these blocks are one), `glue`
(all other ops), `loops` (bodies of loops, with their backward passes), `blocks`.
"""
