"""Prints the ParallelBlocks of a small model's training step as a table: what docs/blocks.md shows.

    python tools/show_blocks.py gpt llama moe wide_resnet unet

Takes names of models of alpa_cfp_bench.workloads (also "llama, remat" and the like); prints a Markdown table for each,
a row for each kind of block, in the order of the forward pass. Nothing is computed or compiled: the step is traced.
Invariant: sizes are chosen so that the number of parts says what is split.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import jax

from alpa_cfp.analysis.blocks import BlockFactor, Blocks, ParallelBlock, find_blocks
from alpa_cfp.analysis.contractions import Side
from alpa_cfp.analysis.graph import Op
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.analysis.segments import digests_of
from alpa_cfp.analysis.structure import Structure, find_structure
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp_bench.workloads.model import Model, train_step
from alpa_cfp_bench.workloads.models import abstract
from alpa_cfp_bench.workloads.sizes import Size

SIZE = Size(batch=24, hidden=96, layers=4, heads=12, sequence=40, vocabulary=128, image=32, channels=16)
NAMES = {24: "samples", 40: "positions", 12: "heads", 6: "key heads", 8: "experts", 10: "places of an expert"}
IMAGE_NAMES = {24: "samples"}
SIDES = {Side.BATCH: "batch", Side.LEFT: "rows", Side.RIGHT: "columns", Side.REDUCTION: "sum"}
CONTRACTIONS = {
    "stablehlo.dot_general": "product",
    "stablehlo.convolution": "convolution",
    "stablehlo.gather": "lookup",
}
# Ops by which one recognises what is computed.
WORDS = {
    "chlo.erfc": "gelu",
    "stablehlo.logistic": "silu",
    "stablehlo.cosine": "sine and cosine",
    "stablehlo.rsqrt": "norm",
    "stablehlo.reduce_window": "sums or maxima over windows",
    "stablehlo.log": "log",
}
HEADER = ("blocks", "parameters of its contractions", "forward", "inside", "beside", "split along", "partial sum of")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables of the models that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("models", nargs="+", metavar="MODEL", help="such as gpt, llama, moe, wide_resnet, unet")
    for name in parser.parse_args(argv).models:
        sys.stdout.write("\n".join([f"## {name}", "", *table(abstract(name, SIZE)), "", ""]))
    return 0


def table(model: Model) -> list[str]:
    """The lines of the table of a model's training step by `jax.value_and_grad`."""
    traced = jax.jit(train_step(model, jax.value_and_grad)).trace(model.state, model.batch)
    blocks = find_blocks(read_graph(HloModule.from_stablehlo(model.name, traced.lower().as_text()).bytecode))
    paths = _paths(model)
    structure = find_structure(blocks.graph)
    kinds = digests_of(blocks.graph, [(*block.members, *block.glue) for block in blocks.blocks])
    counts = Counter(kinds)
    rows = [
        _row(blocks, structure, paths, block, counts[kind])
        for block, kind in zip(blocks.blocks, kinds, strict=True)
        if kinds.index(kind) == block.index
    ]
    return ["| " + " | ".join(cells) + " |" for cells in (HEADER, ("---",) * len(HEADER), *rows)]


def _paths(model: Model) -> list[str]:
    """The names of the program's parameters: the state's leaves, then the batch's."""
    leaves = jax.tree_util.tree_leaves_with_path((model.state, model.batch))
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]


def _row(
    blocks: Blocks, structure: Structure, paths: Sequence[str], block: ParallelBlock, count: int
) -> tuple[str, ...]:
    graph = blocks.graph
    forward = [graph.ops[entry.op] for entry in block.entries if entry.role == "forward"]
    origins = (graph.values[structure.origin[value]] for op in forward for value in op.operands)
    parameters = (_short(paths[value.position]) for value in origins if value.op is None)
    names = NAMES if any(path.endswith("input_ids") for path in paths) else IMAGE_NAMES
    contractions = Counter(CONTRACTIONS[op.name] for op in forward)
    inside, beside = ([graph.ops[op] for op in ops] for ops in (block.members, block.glue))
    factors = [factor for factor in block.usable_factors if factor.side is not Side.REDUCTION]
    sums = [str(factor.max_shards) for factor in block.usable_factors if factor.side is Side.REDUCTION]
    return (
        f"{block.index}" + (f" and {count - 1} more" if count > 1 else ""),
        _listed(f"`{name}`" for name in dict.fromkeys(parameters)),
        _listed(f"{number} {what}{'s' * (number > 1)}" for what, number in contractions.items()),
        _words(inside),
        _words(beside),
        _listed(_factor(factor, names) for factor in factors),
        _listed(sums),
    )


def _short(path: str) -> str:
    """The last parts of a parameter's path that say which it is."""
    parts = path.split("/")
    return "/".join(parts[:-1][-3:] if parts[-1] in ("kernel", "embedding") else parts[-2:])


def _words(ops: Sequence[Op]) -> str:
    named = {op.name for op in ops}
    words = [word for op, word in WORDS.items() if op in named]
    # A softmax subtracts the maximum of its row; the derivative of gelu has an exponential, too.
    if any(op.name == "stablehlo.reduce" and "maximum" in op.attributes for op in ops):
        words.insert(0, "softmax")
    elif "stablehlo.exponential" in named and "chlo.erfc" not in named:
        words.insert(0, "silu")
    return _listed(words)


def _factor(factor: BlockFactor, names: Mapping[int, str]) -> str:
    return f"{names.get(factor.max_shards, SIDES[factor.side])} ({factor.max_shards})"


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words) or "–"


if __name__ == "__main__":
    sys.exit(main())
