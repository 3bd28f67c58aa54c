"""What plans of candidate stages need: fewer measurements than a plan of its own, on one device none, and less analysis
where it has been done or another mesh gives as good a plan."""

import dataclasses
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from alpa.shard_parallel.auto_sharding import LogicalDeviceMesh
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp import CFPOption
from alpa_cfp.errors import NoDevicesError
from alpa_cfp.planner import is_finer, plan_module
from alpa_cfp.program import Programs
from alpa_cfp.workloads.sizes import TINY
from alpa_on_jax.xla_extension.planner import PlanRequest
from unit.alpa_cfp.steps import model_module, two_layer_module


def request_for(shape: tuple[int, int]) -> PlanRequest:
    return PlanRequest(LogicalDeviceMesh(None, np.arange(math.prod(shape)).reshape(shape)), 1, (), None)


@pytest.mark.parametrize("margin", [1.0, 1.5, math.inf])
def test_candidate_stages_are_pruned_closer_and_not_refined(tmp_path: Path, margin: float) -> None:
    option = CFPOption(database=tmp_path / "profiles.sqlite", pruning_margin=margin)
    with option.planning_stages({}) as planning:
        assert planning.refine == 0
        assert planning.pruning_margin**2 == pytest.approx(margin)


def test_a_candidate_stage_for_one_device_needs_no_profiles(tmp_path: Path) -> None:
    option = CFPOption(database=tmp_path / "profiles.sqlite", progress=False)
    for devices in (1, 2):
        request = request_for((1, devices))
        module = dataclasses.replace(two_layer_module())
        with option.planning_stages({}) as planning:
            if devices == 1:
                assert plan_module(module, request, planning, planning.session).costs == "estimate"
            else:
                with pytest.raises(NoDevicesError):
                    plan_module(module, request, planning, planning.session)


MESH_SHAPES = [(1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (2, 4), (4, 2), (1, 8), (3, 2), (6, 1)]


@given(st.sampled_from(MESH_SHAPES), st.sampled_from(MESH_SHAPES))
def test_a_mesh_is_finer_than_another_one_if_it_has_more_axes_and_its_neighbours_together_are_that(
    one: tuple[int, ...], other: tuple[int, ...]
) -> None:
    # Of two axes at most: a finer mesh has two, and the other one of all their devices.
    assert is_finer(one, other) == (min(one) > 1 and max(other) == math.prod(other) == math.prod(one))


@pytest.mark.parametrize("model", ["mlp", "gpt"])
def test_a_finer_mesh_has_a_plan_that_is_at_least_as_good_by_estimates(model: str) -> None:
    module = model_module(model, TINY)
    option = CFPOption(costs="estimate", progress=False)
    predicted_s = [
        plan_module(dataclasses.replace(module), request_for(shape), option).predicted_s for shape in [(2, 2), (1, 4)]
    ]
    assert predicted_s[0] <= predicted_s[1] * (1 + 1e-9)


def test_a_mesh_of_fewer_axes_is_left_out_where_costs_are_composed_only() -> None:
    fine, coarse = (request_for(shape).logical_mesh for shape in [(2, 2), (4, 1)])
    for stage_costs, is_covered in [("compose", True), ("profile", False)]:
        option = CFPOption(costs="estimate", stage_costs=cast(Any, stage_costs), progress=False)
        assert option.covers(fine, coarse) == is_covered
        assert not option.covers(coarse, fine)
        assert not option.covers(fine, fine)


def test_what_was_found_out_about_a_program_is_known_again_for_an_equal_one() -> None:
    programs, module = Programs(), two_layer_module()
    program = programs.of(module)
    assert programs.of(dataclasses.replace(module)) is program
    assert programs.of(dataclasses.replace(module, donated=tuple(not each for each in module.donated))) is not program
