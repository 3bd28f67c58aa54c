"""How predictions are judged by plans near the fastest."""

import pytest

from benchmarks.judging import near_the_top

# Predicted and measured seconds; the last one is too slow to be looked at.
PLANS = [(1.1, 1.0), (1.21, 1.1), (1.32, 1.2), (9.0, 2.0)]


def test_the_rank_and_the_error_are_those_of_plans_near_the_fastest() -> None:
    found = near_the_top(PLANS)
    assert (found["near"], found["rank"]) == (3, pytest.approx(1.0))
    assert found["error"] == pytest.approx(0.1)


def test_a_machine_that_was_slower_while_planning_makes_no_error_at_the_speed_of_judging() -> None:
    assert near_the_top(PLANS, speed=1 / 1.1)["error_at_speed"] == pytest.approx(0.0)


def test_without_a_plan_that_ran_twice_there_is_no_error_at_the_speed_of_judging() -> None:
    assert "error_at_speed" not in near_the_top(PLANS)
