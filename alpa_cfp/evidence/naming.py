"""Names of a program's blocks and parameters, as its user wrote them.

Ops and parameters have names in their locations: "jit(step)/jvp(GPT)/layer/0/attention/qkv/dot_general",
"state.params['w']". A block is named after the scopes of its first forward contraction; if it has none, after its use
or its weight. Parameters are named by their paths, which are only numbers through alpa ("args[3]") and in unrolled
functions ("leaves[3]"). Invariants: names are not empty, and those of blocks are distinct; only blocks that look up
rows of a parameter are called "embedding", and only blocks that score every row of such a parameter "head".
"""

import re
from collections.abc import Iterable, Sequence

from alpa_cfp import quantities
from alpa_cfp.analysis.blocks import Blocks, ParallelBlock
from alpa_cfp.analysis.graph import LAYOUT_OPS, Graph, Op
from alpa_cfp.spmd.ir import mlir

# Scopes that JAX's transformations and calls add: "jit(step)", "transpose(jvp(GPT))". The innermost part of the latter
# is the first scope within the transformed function.
_WRAPPER = re.compile(r"(\w+)\((.*)\)")
_TRANSFORMATIONS = frozenset({"jvp", "transpose", "vmap"})
_ADDED = frozenset({"checkpoint", "remat", "rematted_computation", "closed_call", "core_call", "pjit"})
# Parameters of functions that take a flat list, as alpa's and unrolled ones do.
_NUMBERED = re.compile(r"(args|leaves|consts?|parameters)\[\d+\]")
_CONVOLUTION = re.compile(r"conv<\[([^]]*)\]x\[([^]]*)\]->")
_TARGET = re.compile(r'call_target_name="([^"]*)"')
_GATHER, _DOT, _COMPARE = "stablehlo.gather", "stablehlo.dot_general", "stablehlo.compare"
# Ops that take one layer's weights from those of all layers.
SLICES = frozenset({"stablehlo.slice", "stablehlo.dynamic_slice"})
_ROOT = re.compile(r"args\[\d+\]|\w*")
_STEP = re.compile(r"\['([^']*)'\]|\[(\w+)\]|\.?(\w+)")
# flax's name for all weights, and its names for the weights of a layer, which add nothing to the layer's name.
_COLLECTION = "params"
_VARIABLES = frozenset({"kernel", "embedding", "scale"})


def block_names(bytecode: bytes, blocks: Blocks) -> tuple[str, ...]:
    """The name of each block of a module; "block 3" if the program has no name for it.

    Args:
        bytecode: The module.
        blocks: Its blocks.
    """
    entries = [entry_of(block) for block in blocks.blocks]
    with mlir.context():
        parsed = mlir.parse(bytecode)
        operations = mlir.block_operations(mlir.entry_block(mlir.main_function(parsed)))
        found = [("", "") if op is None else scopes_of(mlir.location_name(operations[op])) for op in entries]
    # The name of the model itself is included only if there are several models.
    roots = {root for root, _ in found if root}
    scopes = ["/".join(filter(None, each if len(roots) > 1 else each[1:])) for each in found]
    by_use = names_by_use(blocks, ["" if is_number(path) else path for path in parameter_paths(bytecode)])
    return distinct_names(
        scope or use or root or f"block {number}"
        for number, (scope, use, (root, _)) in enumerate(zip(scopes, by_use, found, strict=True))
    )


def parameter_paths(bytecode: bytes) -> tuple[str, ...]:
    """The path of each parameter of a module: "state.params['w']", or its number: "args[3]"."""
    with mlir.context():
        parsed = mlir.parse(bytecode)
        names = [mlir.location_name(each) for each in mlir.entry_block(mlir.main_function(parsed)).arguments]
    return tuple(name or f"parameters[{number}]" for number, name in enumerate(names))


def is_number(path: str) -> bool:
    """Whether the path of a parameter is only its number."""
    return _NUMBERED.fullmatch(path) is not None


def entry_of(block: ParallelBlock) -> int | None:
    """The op that a block is named after: its first forward contraction, or its loop; None if it has neither."""
    forward = [entry.op for entry in block.entries if entry.role == "forward"]
    if forward or block.entries:
        return forward[0] if forward else block.entries[0].op
    return min(block.members) if block.loop is not None else None


def scopes_of(name: str) -> tuple[str, str]:
    """The user's scopes in the name of an op: that of the transformed function, and those inside it.

    "jit(step)/jvp(GPT)/layer/0/dot_general" gives "GPT" and "layer/0"; "" stands for no scope.
    """
    root, scopes = "", list[str]()
    *parts, _ = _split(name)
    for before, part in zip(["", *parts], parts, strict=False):
        if before == "while" and part == "body":
            scopes.pop()
            continue
        scope = _unwrapped(part)
        if not root and not scopes and scope != part:
            root = scope
        # A method of a flax module: "layer_0/layer_0.attend".
        elif scope and not (before and scope.startswith(f"{before}.")) and scope not in _ADDED:
            scopes.append(scope)
    return root, "/".join(scopes)


def distinct_names(names: Iterable[str]) -> tuple[str, ...]:
    """Makes names distinct by appending numbers to repeated ones: "layer", "layer (2)"."""
    found: dict[str, None] = {}
    for name in names:
        count, distinct = 1, name
        while distinct in found:
            count += 1
            distinct = f"{name} ({count})"
        found[distinct] = None
    return tuple(found)


def names_by_use(blocks: Blocks, paths: Sequence[str]) -> tuple[str, ...]:
    """Names each block after the use of its first forward contraction ("embedding", "head"), or after its weight.

    Args:
        blocks: The blocks.
        paths: For each parameter its path; "" if that is only a number.

    Returns:
        For each block its name; "" if nothing is known.
    """
    graph = blocks.graph
    entries = [_forward_op(graph, block) for block in blocks.blocks]
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
        # A tied head shares its table with the lookup, which is another block and has the table's name.
        is_tied = number > tables.get(weight, number) and not _is_lookup(graph, op)
        path = "" if is_tied else short_name(paths[weight])
        is_head = is_tied or (number == last and graph.shape(op.results[0])[-1:] in rows)
        names.append(path or ("head" if is_head else "embedding" if _is_lookup(graph, op) else ""))
    return tuple(names)


def parameter_of(graph: Graph, value: int) -> int | None:
    """The number of the parameter that a value is, maybe sliced or in another layout; None if the value is computed."""
    value = graph.origin(value)
    producer = graph.producer(value)
    while producer is not None and producer.name in LAYOUT_OPS | SLICES:
        value = graph.origin(producer.operands[0])
        producer = graph.producer(value)
    return graph.values[value].position if producer is None else None


def short_name(path: str) -> str:
    """The short name of a weight: "layer_0/q" for "state.params['params']['layer_0']['q']['kernel']"."""
    root = _ROOT.match(path)
    rest = path[root.end() :] if root else path
    steps = [next(filter(None, step), "") for step in _STEP.findall(rest)]
    inner = [step for step in steps if step != _COLLECTION]
    if not any(letter.isalpha() for letter in "".join(inner)):
        inner = [*([root[0]] if root and root[0] else []), *steps]
    return "/".join(inner[:-1] if inner[1:] and inner[-1] in _VARIABLES else inner)


def contraction_of(graph: Graph, block: ParallelBlock) -> str:
    """Describes the first forward contraction of a block: "dot 512x128 by 128x384", "lookup in 1000x64"."""
    number = entry_of(block)
    if number is None:
        return "no contraction"
    op = graph.ops[number]
    if block.loop is not None:
        count = next((loop.trip_count for loop in graph.loops if loop.op == number), None)
        return "loop" if count is None else f"loop of {count} iterations"
    shapes = [graph.shape(value) for value in op.operands[:2]]
    window = _CONVOLUTION.search(op.attributes)
    if op.name == "stablehlo.convolution" and window is not None:
        image, kernel = ([label.strip() for label in group.split(",")] for group in window.groups())
        sizes = sorted((label, shapes[1][dim]) for dim, label in enumerate(kernel) if label.isdigit())
        channels = shapes[0][image.index("f")], shapes[1][kernel.index("o")]
        return "convolution {}, {} to {}".format(quantities.shape(size for _, size in sizes), *channels)
    if op.name == _GATHER:
        return f"lookup in {quantities.shape(shapes[0])}"
    return f"dot {quantities.shape(shapes[0])} by {quantities.shape(shapes[1])}"


def ops_without_rule(graph: Graph, block: ParallelBlock) -> tuple[str, ...]:
    """The names of a block's ops without a sharding rule, each once; for a custom call with its target."""
    ruleless = set(graph.without_rule)
    found = sorted(ruleless.intersection((*block.members, *block.glue)))
    return tuple(dict.fromkeys(_op_name(graph, op) for op in found))


def _op_name(graph: Graph, number: int) -> str:
    op = graph.ops[number]
    target = _TARGET.search(op.attributes) if op.name == "stablehlo.custom_call" else None
    name = op.name.partition(".")[2] or op.name
    return name if target is None else f"{name} {target[1]}"


def _unwrapped(part: str) -> str:
    """The scope without transformations: "GPT" for "transpose(jvp(GPT))"; "" for a function such as "jit(step)"."""
    while wrapper := _WRAPPER.fullmatch(part):
        part = wrapper[2] if wrapper[1] in _TRANSFORMATIONS else ""
    return part


def _split(name: str) -> list[str]:
    """The parts between slashes that are not in parentheses."""
    parts, depth = [""], 0
    for letter in name:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "/" and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _forward_op(graph: Graph, block: ParallelBlock) -> Op | None:
    return next((graph.ops[entry.op] for entry in block.entries if entry.role == "forward"), None)


def _weight(graph: Graph, op: Op) -> int | None:
    """The parameter that a contraction uses: a gather's table, else the right operand if both are parameters."""
    operands = op.operands[:1] if op.name == _GATHER else (op.operands[1], op.operands[0])
    return next((number for value in operands if (number := parameter_of(graph, value)) is not None), None)


def _is_lookup(graph: Graph, op: Op) -> bool:
    """Whether a contraction takes rows of a parameter: a gather, or a dot with a one-hot operand."""
    if op.name != _DOT:
        return op.name == _GATHER
    producer = graph.producer(graph.origin(op.operands[0]))
    while producer is not None and producer.name in LAYOUT_OPS:
        producer = graph.producer(graph.origin(producer.operands[0]))
    # A one-hot operand compares indices with all possible ones, which are constants.
    return (
        producer is not None
        and producer.name == _COMPARE
        and "EQ" in producer.attributes
        and any(
            (own := graph.producer(graph.origin(value))) is not None and graph.constant_derived[own.index]
            for value in producer.operands
        )
    )
