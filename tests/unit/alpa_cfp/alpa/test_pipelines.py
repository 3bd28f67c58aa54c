"""More schedules for alpa's pipelines: wrong use."""

import inspect
from math import inf
from typing import Any

import alpa
import pytest

from alpa_cfp import CFPPipeshardParallel
from alpa_cfp.alpa.pipelines import ExtendedPipeshardParallel
from alpa_cfp.errors import OptionError
from alpa_cfp.stages.schedule_choice import LayerCosts


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


@pytest.mark.parametrize("wrong", ["zerobubble", "1F1B", None])
def test_a_schedule_that_is_none_is_refused_at_once_with_those_that_are(wrong: Any) -> None:
    with pytest.raises(OptionError, match=r"it must be one of 1f1b, gpipe, .*, zero_bubble, auto"):
        CFPPipeshardParallel(pipeline_schedule=wrong)


def costs(layers: int, cost_s: float = 1.0) -> LayerCosts:
    return LayerCosts(layers, 4, lambda first, last, mesh: cost_s, [inf, inf], lambda first, last: 0.5)


@pytest.mark.parametrize("schedule", ["zero_bubble", "auto"])
def test_more_stages_than_meshes_are_refused_where_each_mesh_has_one(schedule: str) -> None:
    asked = ExtendedPipeshardParallel(pipeline_schedule=schedule)
    with pytest.raises(OptionError, match="each mesh has one stage, and alpa has made 4 for 2: give the devices"):
        asked._choice(costs(4), [(0,), (1,), (2,), (3,)])


def test_layers_whose_costs_are_unknown_are_not_said_to_be_too_few() -> None:
    asked = ExtendedPipeshardParallel(pipeline_schedule="interleaved_1f1b", virtual_stages=2)
    with pytest.raises(OptionError, match="alpa's table of costs has none for stages that are so short"):
        asked._choice(costs(8, inf), [(0, 1, 2, 3), (4, 5, 6, 7)])
