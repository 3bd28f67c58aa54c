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
from alpa_cfp.analysis.updates import find_updates
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
        whole = replace(strategy, sums_along=None)
        if strategy != whole and _is_alike(candidate, self._replicated(whole)):
            return
        yield candidate
        distinct_inputs = {candidate.inputs}
        for state_sharding in (StateSharding.ZERO2, StateSharding.ZERO3):
            variant = self._with_state_sharding(candidate, state_sharding)
            if variant.inputs not in distinct_inputs:
                distinct_inputs.add(variant.inputs)
                yield variant

    def _replicated(self, strategy: BlockStrategy) -> Candidate:
        """The candidate of a strategy with `StateSharding.REPLICATED`."""
        key = order_key(self._mesh, strategy, names_axes=self._subprogram.blocks.graph.names_axes)
        known = self._evaluated.get(key)
        if known is None:
            known = self._evaluated[key] = self._evaluate(strategy)
        return known if known.strategy == strategy else self._permuted(known, strategy)

    def _evaluate(self, strategy: BlockStrategy) -> Candidate:
        """The candidate of a strategy with `StateSharding.REPLICATED`, from its own program."""
        module = partitioned(self._subprogram, self._mesh, strategy)
        program = module.partitioned
        assert program is not None
        local = read_local(program.counted)
        in_place = [result for result, _ in donation_pairs(self._subprogram.module)]
        kept = self._backward_inputs
        work = work_of(program.counted, local)
        is_predicted, reason = program.prediction is not None, program.fallback_reason
        return Candidate(
            strategy,
            program.input_shardings,
            program.output_shardings,
            work,
            memory_of(local, kept.inputs, kept.rematerialised, in_place),
            # XLA mostly partitions better than is predicted.
            lower_bound=work_of(program, read_local(program)) if is_predicted else work,
            per_step=self._per_step_work(strategy, program.input_shardings),
            make=lambda: module,
            # For a program of Shardy's passes there is no reason.
            predicted=reason if is_predicted else "",
            unread="" if is_predicted else reason,
            names_axes=self._subprogram.blocks.graph.names_axes,
        )

    def _permuted(self, candidate: Candidate, strategy: BlockStrategy) -> Candidate:
        """The candidate of a strategy, from one with another order of axes. Its program is made on demand."""
        permutation = AxisPermutation.between(self._mesh, candidate.strategy, strategy)
        return replace(
            candidate,
            strategy=strategy,
            inputs=permutation.of_shardings(candidate.inputs),
            outputs=permutation.of_shardings(candidate.outputs),
            make=partial(partitioned, self._subprogram, self._mesh, strategy),
        )

    def _with_state_sharding(self, candidate: Candidate, state_sharding: StateSharding) -> Candidate:
        """The same candidate with another `StateSharding`. Its program is made on demand."""
        blocks, used = self._subprogram.blocks, candidate.inputs
        strategy = replace(candidate.strategy, state_sharding=state_sharding)
        state_shardings = find_state_shardings(blocks, self._updates, [strategy], used)
        inputs = tuple(state_shardings.parameters.get(number, sharding) for number, sharding in enumerate(used))
        outputs = list(candidate.outputs)
        for result, parameter in donation_pairs(self._subprogram.module):
            outputs[result] = inputs[parameter]
        work, lower_bound = (
            work_with_sharded_state(blocks.graph, self._updates, used, state_shardings, each)
            for each in (candidate.work, candidate.lower_bound)
        )
        return replace(
            candidate,
            strategy=strategy,
            inputs=inputs,
            outputs=tuple(outputs),
            work=work,
            lower_bound=lower_bound,
            per_step=self._per_step_work(strategy, used, state_shardings),
            make=partial(partitioned, self._subprogram, self._mesh, strategy, used, candidate.outputs),
        )

    def _per_step_work(
        self, strategy: BlockStrategy, used: Sequence[ArraySharding], state_shardings: StateShardings | None = None
    ) -> Work:
        graph = self._subprogram.blocks.graph
        return per_step_work(graph, self.block, strategy, self._mesh, self._updates, used, state_shardings)


def _is_alike(candidate: Candidate, other: Candidate) -> bool:
    """Whether two candidates have the same boundaries and the same work."""
    return (candidate.inputs, candidate.outputs, candidate.work) == (other.inputs, other.outputs, other.work)
