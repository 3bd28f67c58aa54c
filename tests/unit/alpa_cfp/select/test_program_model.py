"""What programs of plans communicate beyond their parts corrects candidates and pairs of neighbours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.select.program_model import ProgramModel

PAIR = ((0, 1), 2, 3)


def test_without_programs_there_are_no_corrections() -> None:
    model = ProgramModel(1e-4)
    model.add([(0, 0.0), (1, 0.0), (PAIR, 0.0)], 0.0)
    own, pairs = model.corrections()
    assert set(own.values()) | set(pairs.values()) == {0.0}


@given(st.floats(-1e-3, 1e-3))
def test_corrections_of_one_plan_add_up_to_its_difference(difference_s: float) -> None:
    model = ProgramModel(1e-4)
    model.add([(0, 0.0), (1, 0.0), (1, 0.0), (PAIR, 0.0)], difference_s)
    own, pairs = model.corrections()
    assert own[0] + 2 * own[1] + pairs[PAIR] == pytest.approx(difference_s, rel=0.01, abs=1e-9)


def test_what_only_one_of_two_plans_has_takes_more_of_their_difference() -> None:
    model = ProgramModel(1e-4)
    model.add([(0, 0.0), (1, 0.0)], 0.0)
    model.add([(0, 0.0), (2, 0.0)], 1e-4)
    own, _ = model.corrections()
    assert own[2] > own[0] > own[1]


def test_gradients_that_are_summed_together_make_those_cheaper_that_have_some() -> None:
    """The steps of a recurrence sum the gradients of one weight: 20 sums are one."""
    model = ProgramModel(1e-4)
    model.add([*[(0, 1e-3)] * 20, *[(PAIR, 0.0)] * 60], -19e-3)
    own, pairs = model.corrections()
    assert own[0] == pytest.approx(-0.95e-3, rel=0.2)
    assert abs(pairs[PAIR]) < 0.05e-3


def test_a_plan_without_parts_that_take_time_corrects_nothing() -> None:
    model = ProgramModel(0.0, 0.05, 0.1)
    for parts in ([], [(0, 0.0)], [(0, 0.0)]):
        model.add(parts, 0.0)
    assert model.corrections() == ({0: 0.0}, {})
    assert model.common_share() == 0


@given(st.floats(-0.3, 0.3))
def test_what_all_parts_save_alike_is_a_share_of_what_they_take(saved: float) -> None:
    model = ProgramModel(0.0, 0.05, 0.1)
    for parts in ([(0, 1e-3), (1, 2e-3)], [(2, 3e-3), (3, 1e-3)], [(4, 2e-3), (5, 2e-3)]):
        model.add(parts, saved * sum(seconds for _, seconds in parts))
    assert model.common_share() == pytest.approx(saved, rel=0.3)
