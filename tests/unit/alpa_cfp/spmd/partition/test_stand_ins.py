"""A program without its communication computes as much, and waits for no other device."""

import dataclasses

import pytest

from alpa_cfp.candidates.block_candidates import distinct
from alpa_cfp.costs import read_local, work_of
from alpa_cfp.spmd.partition.stand_ins import without_communication
from unit.alpa_cfp.training_steps import two_layer_candidates

PROGRAMS = [each.module.partitioned for each in distinct(two_layer_candidates())]
COMMUNICATING = [each for each in PROGRAMS if each is not None and each.collectives]


@pytest.mark.parametrize("number", range(len(COMMUNICATING)))
def test_no_collective_is_left_and_the_contractions_are_the_same(number: int) -> None:
    program = COMMUNICATING[number]
    without = without_communication(program)
    assert without.collectives == ()
    assert not any(name in without.bytecode for name in (b"all_reduce", b"all_gather", b"reduce_scatter"))
    assert work_of(without, read_local(without)).flops == work_of(program, read_local(program)).flops


def test_a_program_of_xlas_partitioner_stays_as_it_is() -> None:
    program = dataclasses.replace(COMMUNICATING[0], partitioner="xla")
    assert without_communication(program) is program
