"""Candidates: each kind of block under each of its strategies, as a program of its own (CFP, sections 4 and 5).

Takes the parts of a program and a mesh; gives for every kind of block one partitioned program a strategy. Blocks of one
kind share theirs. Where devices would keep the same state, there is one more for each way to share it. A candidate's
program says how the values at its boundary lie when nothing but its own strategy decides, which is what a plan has to
bring them to. Of two strategies that differ only in which of two equally long axes of the mesh is which, one is looked
at. Invariant: candidates of a kind are in the order of its strategies.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from alpa_cfp.analysis.updates import Update, find_updates
from alpa_cfp.apply.annotate import annotate
from alpa_cfp.candidates.accumulation import per_step_work
from alpa_cfp.costs import BlockMemory, Work, memory_of, read_local, work_of
from alpa_cfp.extraction.extractor import Extractor, Subprogram
from alpa_cfp.extraction.subprograms import BackwardInputs, BlockSubprograms
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import partition_to_run
from alpa_cfp.spmd.propagation import donation_pairs
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding, strategies_of
from alpa_cfp.strategies.state_sharding import find_state_shardings, work_with_sharded_state


@dataclass(frozen=True)
class Candidate:
    """A block with a strategy.

    Attributes:
        strategy: The strategy.
        inputs, outputs: How the values at its boundary lie, in the order of the part's.
        work: What a device does.
        memory: What a device holds for it.
        lower_bound: The least that a device does; equal to `work` unless that is a prediction.
        per_step: The part of `work` that is done once a step, however many micro-batches there are.
        make: Makes `module`.
        predicted: Why its work is that of a prediction, XLA partitioning it; "" where it is its program's.
        unread: Why its communication is not known, and counts as none; "" where it is.
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

    @cached_property
    def module(self) -> HloModule:
        """The block alone, partitioned."""
        return self.make()


@dataclass(frozen=True, slots=True)
class BlockCandidates:
    """A block of the program and what can become of it.

    Attributes:
        block: Its index.
        kind: The index of the first block that is the same program.
        inputs, outputs: The values at its boundary, in the order of the candidates' shardings.
        candidates: Those of its kind.
    """

    block: int
    kind: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    candidates: tuple[Candidate, ...]


def find_block_candidates(
    parts: BlockSubprograms, mesh: LogicalMesh, known: dict[Any, tuple[Candidate, ...]] | None = None
) -> tuple[BlockCandidates, ...]:
    """The units of a program, one for each block.

    Args:
        parts: Its blocks by themselves.
        mesh: The logical mesh.
        known: The candidates of blocks that were seen before, of this program or others; new ones are added.
    """
    known = {} if known is None else known
    units: list[BlockCandidates] = []
    cutter = Extractor(parts.module, parts.blocks)
    for number, part in enumerate(parts.subprograms):
        outline = part.spec
        if part.kind == number:
            words = (
                part.digest,
                outline.aliases,
                outline.blocks,
                part.backward_inputs,
                mesh,
                parts.module.combiner_limits,
            )
            if words not in known:
                known[words] = _candidates(cutter.cut(outline), part.backward_inputs, mesh)
            candidates = known[words]
        else:
            candidates = units[part.kind].candidates
        units.append(BlockCandidates(number, part.kind, outline.inputs, outline.outputs, candidates))
    return tuple(units)


def _candidates(part: Subprogram, late: BackwardInputs, mesh: LogicalMesh) -> tuple[Candidate, ...]:
    (block,) = part.blocks.blocks
    updates = find_updates(part.blocks.graph, donation_pairs(part.module))
    found: list[Candidate] = []
    swapped = _equal_axes(mesh)
    base: dict[BlockStrategy, Candidate] = {}
    for strategy in strategies_of(block, mesh.shape):
        mirror = base.get(swapped.of_strategy(strategy)) if swapped is not None else None
        if swapped is None or mirror is None:
            base[strategy] = _candidate(part, late, mesh, updates, strategy)
        else:
            base[strategy] = _mirrored(part, mesh, mirror, swapped, strategy)
        found.append(base[strategy])
        known = {found[-1].inputs}
        for kept in (StateSharding.ZERO2, StateSharding.ZERO3):
            variant = _sharing(part, mesh, updates, found[-len(known)], kept)
            if variant.inputs not in known:
                known.add(variant.inputs)
                found.append(variant)
    return tuple(found)


def _candidate(
    part: Subprogram, late: BackwardInputs, mesh: LogicalMesh, updates: Sequence[Update], strategy: BlockStrategy
) -> Candidate:
    """The candidate that keeps its state as it is used."""
    module = _partitioned(part, mesh, strategy)
    program = module.partitioned
    assert program is not None
    local = read_local(program.counted)
    memory = memory_of(local, late.inputs, late.repeated)
    work = work_of(program.counted, local)
    # XLA mostly finds something better than what is predicted.
    lower_bound = work if program.prediction is None else work_of(program, read_local(program))
    per_step = _per_step_work(part, mesh, updates, strategy, program.input_shardings)
    # Empty for a program of Shardy's passes.
    predicted, unread = ("", program.fallback_reason) if program.prediction is None else (program.fallback_reason, "")
    inputs, outputs = program.input_shardings, program.output_shardings
    return Candidate(strategy, inputs, outputs, work, memory, lower_bound, per_step, lambda: module, predicted, unread)


@dataclass(frozen=True, slots=True)
class _Swapped:
    """Two axes of a mesh that take each other's place.

    Attributes:
        first, second: Their indices.
    """

    first: int
    second: int

    def of_axis(self, index: int) -> int:
        """The axis in the place of another."""
        return {self.first: self.second, self.second: self.first}.get(index, index)

    def of_strategy(self, strategy: BlockStrategy) -> BlockStrategy:
        """The strategy that splits along one what this one splits along the other."""
        factors = tuple(strategy.factors[self.of_axis(index)] for index in range(len(strategy.factors)))
        return replace(strategy, factors=factors)

    def of_sharding(self, sharding: ArraySharding) -> ArraySharding:
        """The same for an array."""
        dims = (tuple(replace(axis, index=self.of_axis(axis.index)) for axis in axes) for axes in sharding.dims)
        return ArraySharding(sharding.mesh, tuple(dims))


def _equal_axes(mesh: LogicalMesh) -> _Swapped | None:
    """The two axes of a mesh if it has no others, and they are equally long."""
    if len(mesh.axes) != 2 or mesh.axes[0].size != mesh.axes[1].size:
        return None
    return _Swapped(mesh.axes[0].index, mesh.axes[1].index)


def _mirrored(
    part: Subprogram, mesh: LogicalMesh, candidate: Candidate, swapped: _Swapped, strategy: BlockStrategy
) -> Candidate:
    """The candidate of a strategy of which there is the mirror image; its program is made only if it is asked for."""
    return replace(
        candidate,
        strategy=strategy,
        inputs=tuple(map(swapped.of_sharding, candidate.inputs)),
        outputs=tuple(map(swapped.of_sharding, candidate.outputs)),
        make=partial(_partitioned, part, mesh, strategy),
    )


def _sharing(
    part: Subprogram, mesh: LogicalMesh, updates: Sequence[Update], candidate: Candidate, kept: StateSharding
) -> Candidate:
    """The same candidate with its state kept otherwise; its program is made only if it is asked for."""
    strategy = replace(candidate.strategy, state_sharding=kept)
    state_shardings = find_state_shardings(part.blocks, updates, [strategy], candidate.inputs)
    inputs = tuple(state_shardings.parameters.get(number, sharding) for number, sharding in enumerate(candidate.inputs))
    outputs = list(candidate.outputs)
    for result, parameter in donation_pairs(part.module):
        outputs[result] = inputs[parameter]
    work, lower_bound = (
        work_with_sharded_state(part.blocks.graph, updates, candidate.inputs, state_shardings, each)
        for each in (candidate.work, candidate.lower_bound)
    )
    per_step = _per_step_work(part, mesh, updates, strategy, candidate.inputs)
    make = partial(_partitioned, part, mesh, strategy, candidate.inputs)
    return replace(
        candidate,
        strategy=strategy,
        inputs=inputs,
        outputs=tuple(outputs),
        work=work,
        lower_bound=lower_bound,
        per_step=per_step,
        make=make,
    )


def _per_step_work(
    part: Subprogram,
    mesh: LogicalMesh,
    updates: Sequence[Update],
    strategy: BlockStrategy,
    used: Sequence[ArraySharding],
) -> Work:
    (block,) = part.blocks.blocks
    return per_step_work(part.blocks.graph, block, strategy, mesh, updates, used)


def _partitioned(
    part: Subprogram, mesh: LogicalMesh, strategy: BlockStrategy, used: Sequence[ArraySharding] | None = None
) -> HloModule:
    module = replace(part.module)
    annotate(module, part.blocks, mesh, [strategy], used)
    module.partitioned = partition_to_run(module, predicts=True)
    return module


def distinct(units: Sequence[BlockCandidates]) -> list[Candidate]:
    """The candidates of all kinds, those of each kind once."""
    return [candidate for unit in units if unit.kind == unit.block for candidate in unit.candidates]
