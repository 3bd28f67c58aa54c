"""Candidates: each kind of block under each of its strategies, as a program of its own (CFP, sections 4 and 5).

Takes the subprograms of a program's blocks and a mesh; gives for every kind of block one partitioned program a
strategy. One with split sums is left out where there are no sums to split. Where devices would hold copies of state,
there is one more candidate for each other `StateSharding`. The boundary shardings of a candidate's program follow from
its own strategy alone; a plan reshards to them. Strategies that differ by the order of mesh axes of equal size are
evaluated once. Invariant: candidates of a kind are in the order of its strategies.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from alpa_cfp.analysis.blocks import ParallelBlock
from alpa_cfp.analysis.collection import without_collection
from alpa_cfp.analysis.updates import Update, find_updates
from alpa_cfp.candidates.accumulation import per_step_work
from alpa_cfp.candidates.axis_order import AxisPermutation, order_key
from alpa_cfp.candidates.block_program import partitioned
from alpa_cfp.costs import BlockMemory, Work, memory_of, read_local, work_of
from alpa_cfp.extraction.extractor import Extractor, Subprogram
from alpa_cfp.extraction.subprograms import BackwardInputs, BlockSubprograms
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.propagation import donation_pairs
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding, strategies_of
from alpa_cfp.strategies.state_sharding import StateShardings, find_state_shardings, work_with_sharded_state


@dataclass(frozen=True)
class Candidate:
    """A block with a strategy.

    Attributes:
        strategy: The strategy.
        inputs, outputs: The shardings of the values at its boundary, in the order of the subprogram's.
        work: The work of a device.
        memory: The memory of a device.
        lower_bound: A lower bound of `work`; less than it only if that is a prediction.
        per_step: The subprogram of `work` that is done once a step, however many micro-batches there are.
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


@dataclass(frozen=True, slots=True)
class BlockCandidates:
    """A block of the program with its candidates.

    Attributes:
        block: Its index.
        kind: The index of the first block that is an equal program.
        inputs, outputs: The values at its boundary, in the order of the candidates' shardings.
        candidates: The candidates of its kind.
    """

    block: int
    kind: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    candidates: tuple[Candidate, ...]


@without_collection
def find_block_candidates(
    subprograms: BlockSubprograms,
    mesh: LogicalMesh,
    cache: dict[Any, tuple[Candidate, ...]] | None = None,
    tell: Callable[[Sequence[Candidate]], None] = lambda candidates: None,
    strategies: Callable[[int, ParallelBlock], Sequence[BlockStrategy]] | None = None,
    *,
    split_sums: bool = False,
) -> tuple[BlockCandidates, ...]:
    """Returns the candidates of each block of a program.

    Args:
        subprograms: The subprograms of its blocks.
        mesh: The logical mesh.
        cache: The candidates of kinds of blocks that were seen before, in this program or others; new ones are added.
        tell: Called with the candidates of each kind as soon as there are.
        strategies: Gives those of a kind of block, by its number, that candidates are for, with
            `StateSharding.REPLICATED`; None for all. A cache is of all.
        split_sums: Whether sums over devices may stay in parts.
    """
    cache = {} if cache is None or strategies is not None else cache
    found: list[BlockCandidates] = []
    extractor = Extractor(subprograms.module, subprograms.blocks)
    for number, block in enumerate(subprograms.subprograms):
        spec, backward_inputs = block.spec, block.backward_inputs
        if block.kind == number:
            key = (block.digest, spec.aliases, spec.blocks, spec.ties, backward_inputs, mesh)
            key += (subprograms.module.combiner_limits, split_sums)
            if key not in cache:
                subprogram = extractor.extract(spec)
                (extracted,) = subprogram.blocks.blocks
                chosen = (
                    strategies_of(extracted, mesh.shape, split_sums=split_sums)
                    if strategies is None
                    else strategies(number, extracted)
                )
                cache[key] = _candidates(subprogram, backward_inputs, mesh, chosen)
            candidates = cache[key]
            tell(candidates)
        else:
            candidates = found[block.kind].candidates
        found.append(BlockCandidates(number, block.kind, spec.inputs, spec.outputs, candidates))
    return tuple(found)


def _candidates(
    subprogram: Subprogram, backward_inputs: BackwardInputs, mesh: LogicalMesh, strategies: Sequence[BlockStrategy]
) -> tuple[Candidate, ...]:
    updates = find_updates(subprogram.blocks.graph, donation_pairs(subprogram.module))
    found: list[Candidate] = []
    evaluated: dict[Hashable, Candidate] = {}
    names_axes = subprogram.blocks.graph.names_axes
    # What has no sums to split.
    alike = set[Hashable]()
    for strategy in strategies:
        key = order_key(mesh, strategy, names_axes=names_axes)
        if key in alike:
            continue
        if key in evaluated:
            candidate = _permuted(subprogram, mesh, evaluated[key], strategy)
        else:
            candidate = _candidate(subprogram, backward_inputs, mesh, updates, strategy)
            candidate = replace(candidate, names_axes=names_axes)
            whole = order_key(mesh, replace(strategy, sums_along=None), names_axes=names_axes)
            if whole in evaluated and _is_alike(candidate, evaluated[whole]):
                alike.add(key)
                continue
            evaluated[key] = candidate
        found.append(candidate)
        distinct_inputs = {candidate.inputs}
        for state_sharding in (StateSharding.ZERO2, StateSharding.ZERO3):
            variant = _with_state_sharding(subprogram, mesh, updates, candidate, state_sharding)
            if variant.inputs not in distinct_inputs:
                distinct_inputs.add(variant.inputs)
                found.append(variant)
    return tuple(found)


def _is_alike(candidate: Candidate, other: Candidate) -> bool:
    """Whether two candidates have the same boundaries and the same work."""
    return (candidate.inputs, candidate.outputs, candidate.work) == (other.inputs, other.outputs, other.work)


def _candidate(
    subprogram: Subprogram,
    backward_inputs: BackwardInputs,
    mesh: LogicalMesh,
    updates: Sequence[Update],
    strategy: BlockStrategy,
) -> Candidate:
    """The candidate of a strategy with `StateSharding.REPLICATED`."""
    module = partitioned(subprogram, mesh, strategy)
    program = module.partitioned
    assert program is not None
    local = read_local(program.counted)
    in_place = [result for result, _ in donation_pairs(subprogram.module)]
    memory = memory_of(local, backward_inputs.inputs, backward_inputs.rematerialised, in_place)
    work = work_of(program.counted, local)
    # XLA mostly partitions better than is predicted.
    lower_bound = work if program.prediction is None else work_of(program, read_local(program))
    per_step = _per_step_work(subprogram, mesh, updates, strategy, program.input_shardings)
    # For a program of Shardy's passes there is no reason.
    predicted, unread = ("", program.fallback_reason) if program.prediction is None else (program.fallback_reason, "")
    inputs, outputs = program.input_shardings, program.output_shardings
    return Candidate(strategy, inputs, outputs, work, memory, lower_bound, per_step, lambda: module, predicted, unread)


def _permuted(subprogram: Subprogram, mesh: LogicalMesh, candidate: Candidate, strategy: BlockStrategy) -> Candidate:
    """The candidate of a strategy, from one with another order of axes. Its program is made on demand."""
    permutation = AxisPermutation.between(mesh, candidate.strategy, strategy)
    return replace(
        candidate,
        strategy=strategy,
        inputs=permutation.of_shardings(candidate.inputs),
        outputs=permutation.of_shardings(candidate.outputs),
        make=partial(partitioned, subprogram, mesh, strategy),
    )


def _with_state_sharding(
    subprogram: Subprogram,
    mesh: LogicalMesh,
    updates: Sequence[Update],
    candidate: Candidate,
    state_sharding: StateSharding,
) -> Candidate:
    """The same candidate with another `StateSharding`. Its program is made on demand."""
    strategy = replace(candidate.strategy, state_sharding=state_sharding)
    state_shardings = find_state_shardings(subprogram.blocks, updates, [strategy], candidate.inputs)
    inputs = tuple(state_shardings.parameters.get(number, sharding) for number, sharding in enumerate(candidate.inputs))
    outputs = list(candidate.outputs)
    for result, parameter in donation_pairs(subprogram.module):
        outputs[result] = inputs[parameter]
    work, lower_bound = (
        work_with_sharded_state(subprogram.blocks.graph, updates, candidate.inputs, state_shardings, each)
        for each in (candidate.work, candidate.lower_bound)
    )
    per_step = _per_step_work(subprogram, mesh, updates, strategy, candidate.inputs, state_shardings)
    make = partial(partitioned, subprogram, mesh, strategy, candidate.inputs, candidate.outputs)
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
    subprogram: Subprogram,
    mesh: LogicalMesh,
    updates: Sequence[Update],
    strategy: BlockStrategy,
    used: Sequence[ArraySharding],
    state_shardings: StateShardings | None = None,
) -> Work:
    (block,) = subprogram.blocks.blocks
    return per_step_work(subprogram.blocks.graph, block, strategy, mesh, updates, used, state_shardings)


def distinct(block_candidates: Sequence[BlockCandidates]) -> list[Candidate]:
    """Returns the candidates of all kinds of blocks, each once."""
    return [candidate for each in block_candidates if each.kind == each.block for candidate in each.candidates]
