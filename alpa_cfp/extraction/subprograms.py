"""The blocks of a program as parts of it: which of them are the same program, and what each takes and gives.

Takes a module and its blocks; gives for every block the outline of the program that it is by itself, and the first
block that is the same. Nothing here depends on a mesh. Invariant: blocks of one kind have outlines of one form.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from alpa_cfp.analysis.backward import rematerialised_ranges
from alpa_cfp.analysis.blocks import Blocks, ParallelBlock
from alpa_cfp.analysis.segments import digests_of
from alpa_cfp.extraction.extractor import Extractor, SubprogramSpec
from alpa_cfp.spmd.module.hlo_module import HloModule


@dataclass(frozen=True, slots=True)
class BackwardInputs:
    """Numbers of a part's inputs that are not there in its forward pass.

    Attributes:
        inputs: Those that the backward passes of later blocks bring.
        repeated: Those from which the part computes again, or that another part has computed again.
    """

    inputs: frozenset[int]
    repeated: frozenset[int]


@dataclass(frozen=True, slots=True)
class BlockSubprogram:
    """A block by itself.

    Attributes:
        kind: The index of the first block that is the same program.
        digest: What is equal for equal parts, of this program or of another.
        outline: What it is when it is cut out.
        late: Which of its inputs come late.
    """

    kind: int
    digest: bytes
    spec: SubprogramSpec
    backward_inputs: BackwardInputs


@dataclass(frozen=True, slots=True)
class BlockSubprograms:
    """The blocks of a program by themselves.

    Attributes:
        module: The whole, unoptimised.
        blocks: Its blocks.
        parts: One for each.
    """

    module: HloModule
    blocks: Blocks
    subprograms: tuple[BlockSubprogram, ...]


def find_subprograms(module: HloModule, blocks: Blocks) -> BlockSubprograms:
    """The parts of a module.

    Args:
        module: An unoptimised module.
        blocks: Its blocks.
    """
    cutter, repeated = Extractor(module, blocks), rematerialised_ranges(blocks)
    ops_of_block = [tuple(sorted((*block.members, *block.glue))) for block in blocks.blocks]
    first_of: dict[bytes, int] = {}
    parts: list[BlockSubprogram] = []
    for number, digest in enumerate(digests_of(blocks.graph, ops_of_block)):
        kind = first_of.setdefault(digest, number)
        outline = cutter.outline(ops_of_block[number], f"block{kind}")
        late = (
            _late(blocks, blocks.blocks[number], outline.inputs, repeated)
            if kind == number
            else parts[kind].backward_inputs
        )
        parts.append(BlockSubprogram(kind, digest, outline, late))
    return BlockSubprograms(module, blocks, tuple(parts))


def _late(blocks: Blocks, block: ParallelBlock, inputs: Sequence[int], repeated: Sequence[range]) -> BackwardInputs:
    """When the inputs of a part come."""
    graph = blocks.graph
    forward = max((entry.op for entry in block.entries if entry.role == "forward"), default=len(graph.ops))
    late: set[int] = set()
    again: set[int] = set()
    for number, value in enumerate(inputs):
        made, came = graph.values[graph.origin(value)].op, graph.values[value].op
        # Cotangents come through the barrier, too, before what is computed again: they are late.
        if made is not None and made > forward:
            (again if _is_in(made, repeated) else late).add(number)
        elif came is not None and _is_in(came, repeated):
            again.add(number)
    return BackwardInputs(frozenset(late), frozenset(again))


def _is_in(op: int, parts: Sequence[range]) -> bool:
    return any(op in part for part in parts)
