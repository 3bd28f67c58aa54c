"""A candidate: a block with a strategy, as a partitioned program of its own.

Takes a strategy and what it makes of a block; gives its shardings, work and memory. Invariant: the boundary shardings
follow from the strategy alone; a plan reshards to them.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property

from alpa_cfp.candidates.axis_order import order_key
from alpa_cfp.costs import BlockMemory, Work
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings.sharding import ArraySharding
from alpa_cfp.strategies.block_strategy import BlockStrategy


@dataclass(frozen=True)
class Candidate:
    """A block with a strategy.

    Attributes:
        strategy: The strategy.
        inputs, outputs: The shardings of the values at its boundary, in the order of the subprogram's.
        work: The work of a device.
        memory: The memory of a device.
        lower_bound: A lower bound of `work`; less than it only if that is a prediction.
        per_step: The part of `work` that is done once a step, however many micro-batches there are.
        make: Makes `module`.
        predicted: The reason why `work` is predicted, for a program that XLA partitions; "" if it is its program's.
        unread: The reason why its communication is unknown, and counts as none; "" if it is known.
        names_axes: Whether the program of the block names mesh axes itself, by what it asks of shardings.
    """

    strategy: BlockStrategy
    inputs: tuple[ArraySharding, ...]
    outputs: tuple[ArraySharding, ...]
    work: Work
    memory: BlockMemory
    lower_bound: Work
    per_step: Work
    make: Callable[[], HloModule] = field(compare=False, repr=False)
    predicted: str = ""
    unread: str = ""
    names_axes: bool = False

    @property
    def order(self) -> Hashable:
        """Equal for candidates of a kind that differ only by the order of equal mesh axes."""
        mesh = (*self.inputs, *self.outputs)[0].mesh
        return order_key(mesh, self.strategy, names_axes=self.names_axes)

    @cached_property
    def module(self) -> HloModule:
        """The partitioned program of the block alone."""
        return self.make()
