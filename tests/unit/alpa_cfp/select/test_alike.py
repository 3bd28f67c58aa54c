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
from unit.alpa_cfp.training_steps import two_layer_blocks, two_layer_module

MESH = LogicalMesh((2, 4))
BLOCK = two_layer_blocks().blocks[0]
CANDIDATES = find_block_candidates(find_subprograms(two_layer_module(), two_layer_blocks()), MESH)[0].candidates


def splits_samples(candidate: Candidate) -> bool:
    return {None if each is None else BLOCK.factors[each].side for each in candidate.strategy.factors} == {Side.LEFT}


def test_the_fastest_is_measured_first_and_then_that_of_data_parallelism() -> None:
    """Where writing takes all the time, splitting samples alone is not the fastest."""
    others = [each for each in CANDIDATES if not splits_samples(each)]
    slow = [replace(each, work=replace(each.work, memory_bytes=1.4 * each.work.memory_bytes)) for each in CANDIDATES]
    samples = next(each for each in slow if splits_samples(each))
    first, second = first_measured(BLOCK, [*others, samples], Rates())
    assert second == measured_program(samples)
    fastest_s = min(estimated_s(measured_work(each), Rates()) for each in others)
    fastest = [each for each in others if estimated_s(measured_work(each), Rates()) == fastest_s]
    assert first in [measured_program(each) for each in fastest]


def test_of_data_parallelism_that_communicates_far_more_than_others_nothing_is_measured_first() -> None:
    others = [each for each in CANDIDATES if not splits_samples(each)]
    samples = next(each for each in CANDIDATES if splits_samples(each))
    much = replace(samples.work, collectives=(Collective("all-reduce", 10**9, 8),))
    slow = replace(samples, work=Work(much.flops, 2 * much.memory_bytes, much.collectives))
    assert len(first_measured(BLOCK, [*others, slow], Rates())) == 1


def test_one_program_is_measured_first_where_data_parallelism_is_the_fastest() -> None:
    samples = next(each for each in CANDIDATES if splits_samples(each))
    assert first_measured(BLOCK, [samples], Rates()) == [measured_program(samples)]
