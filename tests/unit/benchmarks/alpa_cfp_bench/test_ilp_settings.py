"""Alpa's ILP gets every shape of the mesh, and the fastest of its plans counts."""

import math
import time
from types import SimpleNamespace
from typing import Any

import pytest

from alpa_cfp_bench.case import Effort
from alpa_cfp_bench.ilp_settings import best_setting, settings
from alpa_cfp_bench.methods import Setting
from alpa_on_jax.errors import AutoShardingInfeasibleError, BatchDimError

pytestmark = pytest.mark.slow

EFFORT = Effort(rounds=5, copies=2)
GIVEN = Setting("2x4")
NO_PLAN = AutoShardingInfeasibleError("no plan for it")


class Planner:
    """Plans programs that take so many milliseconds, or raises; equal times are equal programs."""

    def __init__(self, milliseconds: dict[str, float | Exception]) -> None:
        self._milliseconds = milliseconds
        self.planned: list[str] = []
        self.runs = 0

    def __call__(self, setting: Setting) -> Any:
        self.planned.append(str(setting))
        taken = self._milliseconds[str(setting)]
        if isinstance(taken, Exception):
            raise taken

        def program() -> None:
            self.runs += 1
            time.sleep(taken / 1e3)

        return SimpleNamespace(text=str(taken), program=program)


def among(*names: str) -> list[Setting]:
    return [each for each in settings(8) if str(each) in names]


def test_there_is_a_setting_for_each_shape_and_those_of_two_axes_are_there_twice() -> None:
    assert list(map(str, settings(8))) == ["1x8", "2x4", "2x4 mixed", "4x2", "4x2 mixed", "8x1"]
    assert list(map(str, settings(1))) == ["1x1"]
    assert list(map(str, settings(6))) == ["1x6", "2x3", "2x3 mixed", "3x2", "3x2 mixed", "6x1"]


def test_the_fastest_program_is_taken() -> None:
    plan = Planner({"1x8": 4.0, "2x4": 9.0, "8x1": 2.0})
    best = best_setting(plan, among("1x8", "2x4", "8x1"), GIVEN, EFFORT)
    assert str(best.setting) == "8x1"
    assert best.programs == 3
    assert {str(setting): seconds > 0 for setting, seconds in best.median_s.items()} == {
        "2x4": True,
        "1x8": True,
        "8x1": True,
    }
    assert best.median_s[Setting("8x1")] == min(best.median_s.values())


def test_equal_programs_run_once_and_the_setting_that_was_given_stands_for_them() -> None:
    plan = Planner({"1x8": 9.0, "2x4": 2.0, "2x4 mixed": 2.0})
    best = best_setting(plan, among("1x8", "2x4", "2x4 mixed"), GIVEN, EFFORT)
    assert best.setting == GIVEN
    assert best.median_s[Setting("2x4", mixed=True)] == best.median_s[GIVEN]
    # Each setting once, and each of the two programs once more.
    assert len(plan.planned) == 3 + 2


def test_where_all_programs_are_the_same_none_runs() -> None:
    plan = Planner({"1x8": 2.0, "2x4": 2.0})
    best = best_setting(plan, among("1x8", "2x4"), GIVEN, EFFORT)
    assert best.setting == GIVEN
    assert plan.runs == 0
    assert all(map(math.isnan, best.median_s.values()))


def test_a_setting_without_a_plan_is_left_out_and_only_where_none_has_one_is_that_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plan = Planner({"1x8": 2.0, "2x4": NO_PLAN})
    assert str(best_setting(plan, among("1x8", "2x4"), GIVEN, EFFORT).setting) == "1x8"
    assert "Alpa's ILP has no plan for 2x4" in caplog.text
    with pytest.raises(AutoShardingInfeasibleError, match="no plan for"):
        best_setting(Planner({"1x8": NO_PLAN, "2x4": NO_PLAN}), among("1x8", "2x4"), GIVEN, EFFORT)


def test_a_setting_whose_axis_does_not_divide_the_batch_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    plan = Planner({"2x4": 2.0, "4x2": BatchDimError.indivisible((2, 1024), 0, 0, 4)})
    assert str(best_setting(plan, among("2x4", "4x2"), GIVEN, EFFORT).setting) == "2x4"
    assert "Alpa's ILP has no plan for 4x2: an array of shape (2, 1024)" in caplog.text
