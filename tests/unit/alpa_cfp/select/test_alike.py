"""What is measured first of the candidates of a kind of block."""

from dataclasses import replace

from alpa_cfp.analysis.contractions import Side
from alpa_cfp.candidates.block_candidates import find_block_candidates
from alpa_cfp.candidates.candidate import Candidate
from alpa_cfp.costs import Rates, Work, estimated_s
from alpa_cfp.extraction.subprograms import find_subprograms
from alpa_cfp.select.alike import first_measured, measured_program, measured_work
from alpa_cfp.spmd.partition import Collective
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import StateSharding
from unit.alpa_cfp.training_steps import two_layer_blocks, two_layer_module

MESH = LogicalMesh((2, 4))
BLOCK = two_layer_blocks().blocks[0]
EVERY = find_block_candidates(find_subprograms(two_layer_module(), two_layer_blocks()), MESH)[0].candidates
# Others compute alike, and are not measured.
CANDIDATES = [each for each in EVERY if each.strategy.state_sharding is StateSharding.REPLICATED]


def splits_samples(candidate: Candidate) -> bool:
    return {None if each is None else BLOCK.factors[each].side for each in candidate.strategy.factors} == {Side.LEFT}


def test_the_fastest_is_measured_first_and_then_that_of_data_parallelism() -> None:
    """Where communication takes no time, and splitting samples alone is not the fastest."""
    rates = Rates(latency_s=1e-12, link_bytes_per_s=1e18)
    others = [each for each in CANDIDATES if not splits_samples(each)]
    fastest_s = min(estimated_s(measured_work(each), rates) for each in others)
    samples = next(each for each in CANDIDATES if splits_samples(each))
    slower = replace(samples, work=Work(0.0, 1.2 * fastest_s * rates.bytes_per_s, ()))
    first, second = first_measured(BLOCK, [*others, slower], rates)
    fastest = [each for each in others if estimated_s(measured_work(each), rates) == fastest_s]
    assert first in [measured_program(each) for each in fastest]
    assert second == measured_program(slower)


def test_of_data_parallelism_that_communicates_far_more_than_others_nothing_is_measured_first() -> None:
    others = [each for each in CANDIDATES if not splits_samples(each)]
    samples = next(each for each in CANDIDATES if splits_samples(each))
    much = replace(samples.work, collectives=(Collective("all-reduce", 10**9, 8),))
    slow = replace(samples, work=Work(much.flops, 2 * much.memory_bytes, much.collectives))
    assert len(first_measured(BLOCK, [*others, slow], Rates())) == 1


def test_one_program_is_measured_first_where_data_parallelism_is_the_fastest() -> None:
    samples = next(each for each in CANDIDATES if splits_samples(each))
    assert first_measured(BLOCK, [samples], Rates()) == [measured_program(samples)]
