"""The parts of a forward pass, each of which may be computed again in the backward pass as a whole.

Takes `Blocks`; gives ranges of ops. A part is a segment of the model, a layer for one; where a model repeats nothing,
it is some blocks, about as many as there are parts, which is what needs least memory if all are computed again (Chen et
al. (2016), arXiv 1604.06174, section 4). It begins where least goes from the parts before to those behind. Invariants:
the parts are in program order, end before the backward pass, and have no op in common.
"""

import math
import re
from itertools import pairwise

from alpa_cfp.analysis.backward import backward_start
from alpa_cfp.analysis.blocks import Blocks
from alpa_cfp.analysis.graph import Graph
from alpa_cfp.analysis.segments import find_segments

# With fewer parts than that, segments say nothing of where to cut.
_LEAST = 3


def forward_parts(blocks: Blocks) -> tuple[range, ...]:
    """Returns the parts of the forward pass; none where there is no backward pass."""
    end = backward_start(blocks)
    if end == len(blocks.graph.ops):
        return ()
    entries = {
        block.index: ops
        for block in blocks.blocks
        if (ops := [entry.op for entry in block.entries if entry.role == "forward" and entry.op < end])
    }
    groups = [
        [op for block in segment.blocks for op in entries.get(block, ())] for segment in find_segments(blocks).segments
    ]
    groups = [group for group in groups if group]
    if len(groups) < _LEAST:
        own = sorted(entries.values())
        size = max(math.isqrt(len(own)), 1)
        groups = [[op for ops in own[first : first + size] for op in ops] for first in range(0, len(own), size)]
    crossing = _crossing_bits(blocks.graph, end)
    cuts = [0]
    for before, behind in pairwise(sorted(groups)):
        first, last = max(*before, cuts[-1]) + 1, min(behind)
        cuts.append(min(range(first, last + 1), key=lambda cut: (crossing[cut], cut)) if first <= last else last)
    return tuple(range(first, stop) for first, stop in pairwise([*cuts, end]) if first < stop)


def _crossing_bits(graph: Graph, end: int) -> list[int]:
    """For each op of the forward pass what the ops before it hand on to it and to those behind it in that pass."""
    change = [0] * (end + 1)
    for value in graph.values:
        if value.op is None or value.op >= end or graph.constant_derived[value.op]:
            continue
        last = max((user for user in value.users if user < end), default=value.op)
        if last > value.op:
            size = math.prod(value.shape) * _bits(value.dtype)
            change[value.op + 1] += size
            change[last + 1] -= size
    found, total = [], 0
    for each in change:
        total += each
        found.append(total)
    return found


def _bits(dtype: str) -> int:
    """The bits of an element, by the name of its type in MLIR."""
    found = re.search(r"\d+", dtype)
    return 0 if found is None else int(found[0]) * (2 if dtype.startswith("complex") else 1)
