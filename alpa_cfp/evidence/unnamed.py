"""What blocks are called that the program has no scope for: by what they do, or by their weights.

Takes blocks and the paths of parameters; gives for each block a name, or "" where nothing is known. Invariant: what is
called "embedding" looks rows of a parameter up, what is called "head" scores each row of such a parameter.
"""

from collections.abc import Sequence

from alpa_cfp.analysis.blocks import Blocks, ParallelBlock
from alpa_cfp.analysis.graph import LAYOUT_OPS, Graph, Op
from alpa_cfp.evidence.parameters import parameter_of, short_name

_GATHER, _DOT, _COMPARE = "stablehlo.gather", "stablehlo.dot_general", "stablehlo.compare"


def names_by_use(blocks: Blocks, paths: Sequence[str]) -> tuple[str, ...]:
    """A name for each block, from its first forward contraction: "embedding", "head", or what its weight is called.

    Args:
        blocks: The blocks.
        paths: For each parameter its path; "" where that says nothing.
    """
    graph = blocks.graph
    entries = [_entry(graph, block) for block in blocks.blocks]
    weights = [None if op is None else _weight(graph, op) for op in entries]
    tables = {
        weight: number
        for number, (op, weight) in reversed(list(enumerate(zip(entries, weights, strict=True))))
        if op is not None and weight is not None and _is_lookup(graph, op)
    }
    rows = {graph.shape(graph.parameters[table])[:1] for table in tables}
    last = max((number for number, op in enumerate(entries) if op is not None), default=None)
    names: list[str] = []
    for number, (op, weight) in enumerate(zip(entries, weights, strict=True)):
        if op is None or weight is None:
            names.append("")
            continue
        # The table of a tied head is called after the lookup, which is another block.
        is_tied = number > tables.get(weight, number) and not _is_lookup(graph, op)
        path = "" if is_tied else short_name(paths[weight])
        is_head = is_tied or (number == last and graph.shape(op.results[0])[-1:] in rows)
        names.append(path or ("head" if is_head else "embedding" if _is_lookup(graph, op) else ""))
    return tuple(names)


def _entry(graph: Graph, block: ParallelBlock) -> Op | None:
    return next((graph.ops[entry.op] for entry in block.entries if entry.role == "forward"), None)


def _weight(graph: Graph, op: Op) -> int | None:
    """The parameter that a contraction uses; the right one where both operands are parameters, a gather's table."""
    operands = op.operands[:1] if op.name == _GATHER else (op.operands[1], op.operands[0])
    return next((number for value in operands if (number := parameter_of(graph, value)) is not None), None)


def _is_lookup(graph: Graph, op: Op) -> bool:
    """Whether a contraction takes rows of a parameter: a gather, or a dot with what is one at an index, else zero."""
    if op.name != _DOT:
        return op.name == _GATHER
    producer = graph.producer(graph.origin(op.operands[0]))
    while producer is not None and producer.name in LAYOUT_OPS:
        producer = graph.producer(graph.origin(producer.operands[0]))
    # An index compared with all that there can be, which are constants.
    return (
        producer is not None
        and producer.name == _COMPARE
        and "EQ" in producer.attributes
        and any(
            (own := graph.producer(graph.origin(value))) is not None and graph.constant_derived[own.index]
            for value in producer.operands
        )
    )
