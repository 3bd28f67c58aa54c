"""The candidates of one kind of block, each made when it is asked for first (CFP, sections 4 and 5).

Takes the subprogram of a block and a mesh; gives the candidates of strategies. One with split sums is left out where
there are no sums to split. Where devices would hold copies of state, there is one more candidate for each other
`StateSharding`. Strategies that differ by the order of mesh axes of equal size are evaluated once. Invariant: a
strategy has the same candidates whichever others were asked for before.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from alpa_cfp.analysis.blocks import ParallelBlock
from alpa_cfp.analysis.updates import Update, find_updates
from alpa_cfp.candidates.accumulation import per_step_work
from alpa_cfp.candidates.axis_order import AxisPermutation, order_key
from alpa_cfp.candidates.block_program import partitioned
from alpa_cfp.candidates.candidate import Candidate
from alpa_cfp.costs import Work, memory_of, read_local, work_of
from alpa_cfp.extraction.extractor import Subprogram
from alpa_cfp.extraction.subprograms import BackwardInputs
from alpa_cfp.spmd.propagation import donation_pairs
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding
from alpa_cfp.strategies.state_sharding import StateShardings, find_state_shardings, work_with_sharded_state


class KindCandidates:
    """The candidates of one kind of block on one mesh.

    Args:
        subprogram: The block as a program of its own.
        backward_inputs: Its inputs that are kept for the backward pass.
        mesh: The logical mesh.
    """

    def __init__(self, subprogram: Subprogram, backward_inputs: BackwardInputs, mesh: LogicalMesh) -> None:
        self._subprogram, self._backward_inputs, self._mesh = subprogram, backward_inputs, mesh
        self._updates = find_updates(subprogram.blocks.graph, donation_pairs(subprogram.module))
        # By strategy but for the order of equal axes; and all that there are of a strategy, by it.
        self._evaluated = dict[Hashable, Candidate]()
        self._of = dict[BlockStrategy, tuple[Candidate, ...]]()

    @property
    def block(self) -> ParallelBlock:
        """The block, in its own program."""
        (block,) = self._subprogram.blocks.blocks
        return block

    def of(self, strategies: Iterable[BlockStrategy]) -> tuple[Candidate, ...]:
        """The candidates of strategies with `StateSharding.REPLICATED`, in their order; new ones are made."""
        found: list[Candidate] = []
        for strategy in strategies:
            if strategy not in self._of:
                self._of[strategy] = tuple(self._all_of(strategy))
            found += self._of[strategy]
        return tuple(found)

    def _all_of(self, strategy: BlockStrategy) -> Iterable[Candidate]:
        """The candidates of a strategy, one for each `StateSharding` that is another program."""
        candidate = self._replicated(strategy)
        if strategy.sums_along is not None:
            whole = self._replicated(replace(strategy, sums_along=None))
            if _is_alike(candidate, whole):
                return
        yield candidate
        distinct_inputs = {candidate.inputs}
        for state_sharding in (StateSharding.ZERO2, StateSharding.ZERO3):
            variant = _with_state_sharding(self._subprogram, self._mesh, self._updates, candidate, state_sharding)
            if variant.inputs not in distinct_inputs:
                distinct_inputs.add(variant.inputs)
                yield variant

    def _replicated(self, strategy: BlockStrategy) -> Candidate:
        """The candidate of a strategy with `StateSharding.REPLICATED`."""
        names_axes = self._subprogram.blocks.graph.names_axes
        key = order_key(self._mesh, strategy, names_axes=names_axes)
        known = self._evaluated.get(key)
        if known is None:
            made = _candidate(self._subprogram, self._backward_inputs, self._mesh, self._updates, strategy)
            known = self._evaluated[key] = replace(made, names_axes=names_axes)
        return known if known.strategy == strategy else _permuted(self._subprogram, self._mesh, known, strategy)


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
