"""More schedules for alpa's pipelines: wrong use."""

import inspect
from typing import Any

import alpa
import pytest

from alpa_cfp import CFPPipeshardParallel
from alpa_cfp.alpa.pipelines import ExtendedPipeshardParallel
from alpa_cfp.errors import OptionError


@pytest.mark.parametrize("wrong", [0, 1, -2, 2.0, True, "auto"])
def test_a_number_of_virtual_stages_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(OptionError, match="it must be a whole number of at least 2"):
        CFPPipeshardParallel(pipeline_schedule="interleaved_1f1b", virtual_stages=wrong)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero_bubble", "auto"])
def test_a_schedule_without_virtual_stages_says_which_one_has_them(schedule: str) -> None:
    with pytest.raises(OptionError, match=f"with the schedule '{schedule}' each mesh has one stage"):
        ExtendedPipeshardParallel(pipeline_schedule=schedule, virtual_stages=2)


def test_it_takes_alpas_arguments_in_alpas_order() -> None:
    own, alpas = (
        list(inspect.signature(method).parameters) for method in (ExtendedPipeshardParallel, alpa.PipeshardParallel)
    )
    assert own[: len(alpas)] == alpas
    assert own[len(alpas) :] == ["virtual_stages"]
    assert list(inspect.signature(CFPPipeshardParallel).parameters) == own


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "inference", "1f1b_overlap_friendly"])
def test_alpas_schedules_are_alpas(schedule: str) -> None:
    assert ExtendedPipeshardParallel(pipeline_schedule=schedule).pipeline_schedule == schedule
