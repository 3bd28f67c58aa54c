"""Names of a program's blocks and parameters, as its user wrote them.

Takes a module, whose ops and parameters have names in their locations ("jit(step)/jvp(GPT)/layer/0/attention/qkv/
dot_general", "state.params['w']"), and its blocks; gives the scopes of each block's first forward contraction, or what
`unnamed.py` finds where it has none, and the paths of parameters, which are numbers through alpa ("args[3]") and in
unrolled functions ("leaves[3]"). Invariant: names are not empty, and those of blocks are distinct.
"""

import re
from collections.abc import Iterable

from alpa_cfp.analysis.blocks import Blocks, ParallelBlock
from alpa_cfp.analysis.graph import Graph
from alpa_cfp.evidence.unnamed import names_by_use
from alpa_cfp.spmd.ir import mlir

# What JAX's transformations and calls add to scopes: "jit(step)", "transpose(jvp(GPT))". Inside the latter is the first
# scope within the transformed function.
_WRAPPER = re.compile(r"(\w+)\((.*)\)")
_TRANSFORMATIONS = frozenset({"jvp", "transpose", "vmap"})
_ADDED = frozenset({"checkpoint", "remat", "rematted_computation", "closed_call", "core_call", "pjit"})
# Parameters of functions that take all of them alike, as alpa's and unrolled ones do.
_NUMBERED = re.compile(r"(args|leaves|consts?|parameters)\[\d+\]")
_CONVOLUTION = re.compile(r"conv<\[([^]]*)\]x\[([^]]*)\]->")
_TARGET = re.compile(r'call_target_name="([^"]*)"')


def block_names(bytecode: bytes, blocks: Blocks) -> tuple[str, ...]:
    """The name of each block of a module; "block 3" where the program says nothing.

    Args:
        bytecode: The module.
        blocks: Its blocks.
    """
    entries = [entry_of(block) for block in blocks.blocks]
    with mlir.context():
        parsed = mlir.parse(bytecode)
        operations = mlir.block_operations(mlir.entry_block(mlir.main_function(parsed)))
        found = [("", "") if op is None else scopes_of(mlir.location_name(operations[op])) for op in entries]
    # The model's own name is said only where there are several models.
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
    """Whether the path of a parameter says no more than its number."""
    return _NUMBERED.fullmatch(path) is not None


def entry_of(block: ParallelBlock) -> int | None:
    """The op that a block is named after: its first forward contraction, or its loop; None where it has neither."""
    forward = [entry.op for entry in block.entries if entry.role == "forward"]
    if forward or block.entries:
        return forward[0] if forward else block.entries[0].op
    return min(block.members) if block.loop is not None else None


def scopes_of(name: str) -> tuple[str, str]:
    """The scopes that the user knows in the name of an op, the one that was transformed by itself: "GPT" and "layer/0"
    of "jit(step)/jvp(GPT)/layer/0/dot_general"; "" where there are none.
    """
    root, kept = "", list[str]()
    *parts, _ = _split(name)
    for before, part in zip(["", *parts], parts, strict=False):
        if before == "while" and part == "body":
            kept.pop()
            continue
        scope = _unwrapped(part)
        if not root and not kept and scope != part:
            root = scope
        # A method of a flax module: "layer_0/layer_0.attend".
        elif scope and not (before and scope.startswith(f"{before}.")) and scope not in _ADDED:
            kept.append(scope)
    return root, "/".join(kept)


def distinct_names(names: Iterable[str]) -> tuple[str, ...]:
    """`names`, those that were there before with a number behind them: "layer", "layer (2)"."""
    found: dict[str, None] = {}
    for name in names:
        count, constant_derived = 1, name
        while constant_derived in found:
            count += 1
            constant_derived = f"{name} ({count})"
        found[constant_derived] = None
    return tuple(found)


def contraction_of(graph: Graph, block: ParallelBlock) -> str:
    """The first forward contraction of a block in words: "dot 512x128 by 128x384", "lookup in 1000x64"."""
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
        return "convolution {}, {} to {}".format(_by(size for _, size in sizes), *channels)
    if op.name == "stablehlo.gather":
        return f"lookup in {_by(shapes[0])}"
    return f"dot {_by(shapes[0])} by {_by(shapes[1])}"


def ops_without_rule(graph: Graph, block: ParallelBlock) -> tuple[str, ...]:
    """The names of a block's ops that have no sharding rule, each once; of a custom call, what it calls."""
    ruleless = set(graph.without_rule)
    found = sorted(ruleless.intersection((*block.members, *block.glue)))
    return tuple(dict.fromkeys(_op_name(graph, op) for op in found))


def _op_name(graph: Graph, number: int) -> str:
    op = graph.ops[number]
    target = _TARGET.search(op.attributes) if op.name == "stablehlo.custom_call" else None
    name = op.name.partition(".")[2] or op.name
    return name if target is None else f"{name} {target[1]}"


def _by(sizes: Iterable[int]) -> str:
    return "x".join(map(str, sizes)) or "scalar"


def _unwrapped(part: str) -> str:
    """The scope in what transformations made of it: "GPT" of "transpose(jvp(GPT))"; "" of a function: "jit(step)"."""
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
