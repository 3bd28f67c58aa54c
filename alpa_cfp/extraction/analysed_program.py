"""A program with what is found out about it whatever mesh it is for.

Takes an unoptimised module; gives its blocks, its parts, its digest and the stages that are marked in it, each when it
is first asked for, and once. Invariant: the module that was given may be annotated afterwards; this is about what it
was.
"""

import dataclasses
from collections.abc import Sequence, Set
from functools import cached_property

from alpa_cfp.analysis.blocks import Blocks, find_blocks
from alpa_cfp.analysis.graph import BARRIER, Graph
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.analysis.segments import digest_of
from alpa_cfp.analysis.updates import Update, find_updates
from alpa_cfp.extraction.subprograms import BlockSubprograms, find_subprograms
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.module.stages import UPDATE_SUFFIX, StageEnds, stage_ends
from alpa_cfp.spmd.propagation import donation_pairs


class AnalysedProgram:
    """A program, and what is known of it.

    Args:
        module: An unoptimised module.

    Attributes:
        module: A copy of it, which nothing may change.
    """

    def __init__(self, module: HloModule) -> None:
        self.module = dataclasses.replace(module)

    @cached_property
    def blocks(self) -> Blocks:
        return find_blocks(read_graph(self.module.bytecode))

    @cached_property
    def subprograms(self) -> BlockSubprograms:
        return find_subprograms(self.module, self.blocks)

    @cached_property
    def digest(self) -> str:
        """See `digest_of`."""
        return digest_of(self.blocks.graph)

    @cached_property
    def stages(self) -> tuple[StageEnds, ...]:
        """What goes into and comes out of the stages that are marked in it, by the ids of values."""
        return stage_ends(self.module)

    @cached_property
    def update(self) -> frozenset[int]:
        """The ops that are computed from what goes into the marked update; none where none is marked."""
        return _ops_of_update(self.blocks.graph, self.stages)

    @cached_property
    def updates(self) -> tuple[Update, ...]:
        """See `find_updates`."""
        return find_updates(self.blocks.graph, donation_pairs(self.module))

    @cached_property
    def gradients(self) -> frozenset[int]:
        """The ids of the values that the marked update takes, be it through other marks, and nothing else does.

        They may be results of the program, too: alpa gives a stage its sums of gradients back in the next call.
        """
        return _only_taken_by(self.blocks.graph, self.update)


class AnalysedPrograms:
    """Programs that were seen before, and what was found out about them."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], AnalysedProgram] = {}

    def of(self, module: HloModule) -> AnalysedProgram:
        """What is known of a module; it is a new `AnalysedProgram` where none is equal."""
        key = (module.bytecode, module.donated, module.aliases, module.input_protos, module.output_protos)
        key += (module.combiner_limits,)
        return self._known.setdefault(key, AnalysedProgram(module))


def is_update(stage: str) -> bool:
    """Whether a marked stage of this name is the update, or a part of it."""
    return stage.endswith(UPDATE_SUFFIX)


def _ops_of_update(graph: Graph, stages: Sequence[StageEnds]) -> frozenset[int]:
    late = {value for stage in stages if is_update(stage.name) for value in stage.inputs}
    found: set[int] = set()
    for op in graph.ops:
        if not late.isdisjoint(op.operands):
            found.add(op.index)
            late.update(op.results)
    return frozenset(found)


def _only_taken_by(graph: Graph, ops: Set[int]) -> frozenset[int]:
    found: set[int] = set()

    def is_taken(value: int, user: int) -> bool:
        op = graph.ops[user]
        if user in ops or op.name != BARRIER:
            return user in ops
        passed = (result for operand, result in zip(op.operands, op.results, strict=True) if operand == value)
        return found.issuperset(passed)

    # Users come after what they use.
    for value in reversed(graph.values):
        if value.users and all(is_taken(value.id, user) for user in value.users):
            found.add(value.id)
    return frozenset(found)
