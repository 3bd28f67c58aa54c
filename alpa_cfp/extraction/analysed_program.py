"""A program with the results of its analysis that do not depend on a mesh.

Takes an unoptimised module; gives its blocks, their subprograms, its skeletons, its digest and the stages that are
marked in it. Each is computed at its first use and kept. Invariant: annotating the given module afterwards changes
nothing here.
"""

import dataclasses
from collections.abc import Sequence, Set
from functools import cached_property

from alpa_cfp.analysis.blocks import Blocks, find_blocks
from alpa_cfp.analysis.graph import BARRIER, Graph
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.analysis.segments import digest_of
from alpa_cfp.analysis.updates import Update, find_updates
from alpa_cfp.extraction.skeleton import Skeletons
from alpa_cfp.extraction.subprograms import BlockSubprograms, find_subprograms
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.module.stages import UPDATE_SUFFIX, StageEnds, stage_ends
from alpa_cfp.spmd.propagation import donation_pairs


class AnalysedProgram:
    """A program and its analysis.

    Args:
        module: An unoptimised module.

    Attributes:
        module: A copy of it, which must not be changed.
    """

    def __init__(self, module: HloModule) -> None:
        self.module = dataclasses.replace(module)

    @cached_property
    def blocks(self) -> Blocks:
        return find_blocks(read_graph(self.module.bytecode))

    @cached_property
    def is_constrained(self) -> bool:
        """Whether it asks for shardings itself, over the axes of its mesh."""
        return self.blocks.graph.names_axes

    @cached_property
    def subprograms(self) -> BlockSubprograms:
        return find_subprograms(self.module, self.blocks)

    @cached_property
    def skeletons(self) -> Skeletons:
        """Shorter programs that it is extrapolated from."""
        return Skeletons(self.module, self.blocks, [each.digest for each in self.subprograms.subprograms])

    @cached_property
    def digest(self) -> str:
        """See `digest_of`."""
        return digest_of(self.blocks.graph)

    @cached_property
    def stages(self) -> tuple[StageEnds, ...]:
        """The inputs and outputs of the stages that are marked in it, as ids of values."""
        return stage_ends(self.module)

    @cached_property
    def update(self) -> frozenset[int]:
        """The ops that are computed from the inputs of the marked update; none if no update is marked."""
        return _ops_of_update(self.blocks.graph, self.stages)

    @cached_property
    def updates(self) -> tuple[Update, ...]:
        """See `find_updates`."""
        return find_updates(self.blocks.graph, donation_pairs(self.module))

    @cached_property
    def gradients(self) -> frozenset[int]:
        """The ids of the values that only the marked update uses, directly or through other marks.

        They may be results of the program, too: alpa passes a stage's sums of gradients to the stage's next call.
        """
        return _used_only_by(self.blocks.graph, self.update)


class AnalysedPrograms:
    """Programs that were analysed before."""

    def __init__(self) -> None:
        self._programs: dict[tuple[object, ...], AnalysedProgram] = {}

    def of(self, module: HloModule) -> AnalysedProgram:
        """Returns the program of an equal module, or a new one."""
        key = (module.bytecode, module.donated, module.aliases, module.input_protos, module.output_protos)
        key += (module.combiner_limits,)
        return self._programs.setdefault(key, AnalysedProgram(module))


def is_update(stage: str) -> bool:
    """Whether a marked stage of this name belongs to the update."""
    return stage.endswith(UPDATE_SUFFIX)


def _ops_of_update(graph: Graph, stages: Sequence[StageEnds]) -> frozenset[int]:
    computed = {value for stage in stages if is_update(stage.name) for value in stage.inputs}
    found: set[int] = set()
    for op in graph.ops:
        if not computed.isdisjoint(op.operands):
            found.add(op.index)
            computed.update(op.results)
    return frozenset(found)


def _used_only_by(graph: Graph, ops: Set[int]) -> frozenset[int]:
    found: set[int] = set()

    def is_used_by_ops(value: int, user: int) -> bool:
        op = graph.ops[user]
        if user in ops or op.name != BARRIER:
            return user in ops
        results = (result for operand, result in zip(op.operands, op.results, strict=True) if operand == value)
        return found.issuperset(results)

    # Users come after what they use.
    for value in reversed(graph.values):
        if value.users and all(is_used_by_ops(value.id, user) for user in value.users):
            found.add(value.id)
    return frozenset(found)
