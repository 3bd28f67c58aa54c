"""The subprograms of a program's blocks: their kinds, inputs and outputs.

Takes a module and its blocks; gives for every block the specification of its subprogram, and the first block that is an
equal program. Nothing here depends on a mesh. Invariant: blocks of one kind have subprograms of the same form.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from alpa_cfp.analysis.backward import rematerialised_ranges
from alpa_cfp.analysis.blocks import Blocks, ParallelBlock
from alpa_cfp.analysis.segments import digests_of
from alpa_cfp.extraction.extractor import Extractor, SubprogramSpec, Tie
from alpa_cfp.spmd.module.hlo_module import HloModule


@dataclass(frozen=True, slots=True)
class BackwardInputs:
    """Numbers of a subprogram's inputs that are not available in its forward pass.

    Attributes:
        inputs: Those that the backward passes of later blocks compute.
        rematerialised: Those from which the subprogram rematerialises values, or that another one rematerialises.
    """

    inputs: frozenset[int]
    rematerialised: frozenset[int]


@dataclass(frozen=True, slots=True)
class BlockSubprogram:
    """A block as a program of its own, not extracted yet.

    Attributes:
        kind: The index of the first block that is an equal program.
        digest: Equal for equal blocks, of this program or of another.
        spec: The specification of its subprogram.
        backward_inputs: Its inputs that are not available in its forward pass.
    """

    kind: int
    digest: bytes
    spec: SubprogramSpec
    backward_inputs: BackwardInputs


@dataclass(frozen=True, slots=True)
class BlockSubprograms:
    """The blocks of a program as programs of their own.

    Attributes:
        module: The unoptimised program.
        blocks: Its blocks.
        subprograms: One for each block.
    """

    module: HloModule
    blocks: Blocks
    subprograms: tuple[BlockSubprogram, ...]


def find_subprograms(module: HloModule, blocks: Blocks) -> BlockSubprograms:
    """Returns the subprograms of the blocks of a module.

    Args:
        module: An unoptimised module.
        blocks: Its blocks.
    """
    extractor, rematerialised = Extractor(module, blocks), rematerialised_ranges(blocks)
    ops_of_block = [tuple(sorted((*block.members, *block.glue))) for block in blocks.blocks]
    first_of: dict[tuple[bytes, tuple[Tie, ...]], int] = {}
    found: list[BlockSubprogram] = []
    for number, digest in enumerate(digests_of(blocks.graph, ops_of_block)):
        spec = extractor.spec(ops_of_block[number], f"block{number}")
        # What is before barriers is not in the digest.
        kind = first_of.setdefault((digest, spec.ties), number)
        spec = replace(spec, name=f"block{kind}")
        if kind == number:
            backward_inputs = _backward_inputs(blocks, blocks.blocks[number], spec.inputs, rematerialised)
        else:
            backward_inputs = found[kind].backward_inputs
        found.append(BlockSubprogram(kind, digest, spec, backward_inputs))
    return BlockSubprograms(module, blocks, tuple(found))


def _backward_inputs(
    blocks: Blocks, block: ParallelBlock, inputs: Sequence[int], rematerialised: Sequence[range]
) -> BackwardInputs:
    """The inputs of a block's subprogram that are not available in its forward pass.

    Args:
        blocks: The blocks of the program.
        block: The block.
        inputs: The inputs of its subprogram.
        rematerialised: The ranges of the program that rematerialise values.
    """
    graph = blocks.graph

    def is_rematerialised(op: int) -> bool:
        return any(op in each for each in rematerialised)

    forward = max((entry.op for entry in block.entries if entry.role == "forward"), default=len(graph.ops))
    backward: set[int] = set()
    repeated: set[int] = set()
    for number, value in enumerate(inputs):
        producer, barrier = graph.values[graph.origin(value)].op, graph.values[value].op
        # Cotangents pass the barrier of a rematerialisation, too: they are backward inputs.
        if producer is not None and producer > forward:
            (repeated if is_rematerialised(producer) else backward).add(number)
        elif barrier is not None and is_rematerialised(barrier):
            repeated.add(number)
    return BackwardInputs(frozenset(backward), frozenset(repeated))
