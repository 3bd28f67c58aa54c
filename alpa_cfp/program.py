"""A program with what is found out about it whatever mesh it is for.

Takes an unoptimised module; gives its blocks, its parts, its digest and the stages that are marked in it, each when it
is first asked for, and once. Invariant: the module that was given may be annotated afterwards; this is about what it
was.
"""

import dataclasses
from functools import cached_property

from alpa_cfp.analysis.blocks import Blocks, find_blocks
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.analysis.segments import digest_of
from alpa_cfp.further import ops_of_update
from alpa_cfp.parts import Parts, find_parts
from alpa_on_jax.xla_extension.hlo_module import HloModule
from alpa_on_jax.xla_extension.stages import StageEnds, stage_ends


class Program:
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
    def parts(self) -> Parts:
        return find_parts(self.module, self.blocks)

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
        """The ops of the update, if it is marked; see `ops_of_update`."""
        return ops_of_update(self.blocks.graph, self.stages)


class Programs:
    """Programs that were seen before, and what was found out about them."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Program] = {}

    def of(self, module: HloModule) -> Program:
        """What is known of a module; it is a new `Program` where none is equal."""
        key = (module.bytecode, module.donated, module.aliases, module.input_protos, module.output_protos)
        return self._known.setdefault(key, Program(module))
