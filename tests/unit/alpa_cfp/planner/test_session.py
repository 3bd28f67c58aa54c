"""Plans of candidate stages need fewer measurements than other plans, on one device none, and less analysis where it
has been done or another mesh gives as good a plan."""

import dataclasses
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from alpa.shard_parallel.auto_sharding import LogicalDeviceMesh
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp import CFPOption, PlanOptions
from alpa_cfp.errors import NoDevicesError, PlanError
from alpa_cfp.extraction.analysed_program import AnalysedProgram, AnalysedPrograms
from alpa_cfp.planner.mesh_shapes import refines
from alpa_cfp.planner.planner import plan, plan_program
from alpa_cfp.planner.request import LocalDevices, PlanRequest, TargetDevices
from alpa_cfp.planner.session import Session
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.targets.target import target
from alpa_cfp_bench.workloads.sizes import TINY
from alpa_on_jax.xla_extension import planner as seam
from unit.alpa_cfp.training_steps import model_module, two_layer_module

pytestmark = pytest.mark.slow


def request_for(shape: tuple[int, int]) -> PlanRequest:
    return PlanRequest(LogicalMesh(shape), LocalDevices((None,) * math.prod(shape), shape))


@pytest.mark.parametrize("margin", [1.0, 1.5, math.inf])
def test_candidate_stages_are_pruned_closer_and_not_refined(tmp_path: Path, margin: float) -> None:
    option = CFPOption(database=tmp_path / "profiles.sqlite", pruning_margin=margin)
    with option.planning_stages({}) as planning:
        assert planning.refine == 0
        assert planning.pruning_margin**2 == pytest.approx(margin)


def test_a_candidate_stage_for_one_device_needs_no_profiles(tmp_path: Path) -> None:
    options = PlanOptions(database=tmp_path / "profiles.sqlite", progress=False)
    program = AnalysedProgram(two_layer_module())
    with Session.open(options) as session:
        made = plan_program(program, request_for((1, 1)), session, needs_profiles=False)
        assert made.plan.costs == "estimate"
        with pytest.raises(NoDevicesError):
            plan_program(program, request_for((1, 2)), session, needs_profiles=False)


MESH_SHAPES = [(1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (2, 4), (4, 2), (1, 8), (3, 2), (6, 1)]


@given(st.sampled_from(MESH_SHAPES), st.sampled_from(MESH_SHAPES))
def test_a_mesh_is_finer_than_another_one_if_it_has_more_axes_and_its_neighbours_together_are_that(
    one: tuple[int, ...], other: tuple[int, ...]
) -> None:
    # Of two axes at most: a finer mesh has two, and the other one of all their devices.
    assert refines(one, other) == (min(one) > 1 and max(other) == math.prod(other) == math.prod(one))


@pytest.mark.parametrize("model", ["mlp", "gpt"])
def test_a_finer_mesh_has_a_plan_that_is_at_least_as_good_by_estimates(model: str) -> None:
    module = model_module(model, TINY)
    options = PlanOptions(costs="estimate", progress=False)
    predicted_s = [plan(module, request_for(shape), options).plan.predicted_s for shape in [(2, 2), (1, 4)]]
    assert predicted_s[0] <= predicted_s[1] * (1 + 1e-9)


def test_a_mesh_of_fewer_axes_is_left_out_where_costs_are_composed_only() -> None:
    fine, coarse = (LogicalDeviceMesh(None, np.arange(4).reshape(shape)) for shape in [(2, 2), (4, 1)])
    for stage_costs, is_covered in [("compose", True), ("profile", False)]:
        option = CFPOption(costs="estimate", stage_costs=cast(Any, stage_costs), progress=False)
        assert option.dominates(fine, coarse) == is_covered
        assert not option.dominates(coarse, fine)
        assert not option.dominates(fine, fine)


def test_an_equal_program_is_not_analysed_again() -> None:
    programs, module = AnalysedPrograms(), two_layer_module()
    program = programs.of(module)
    assert programs.of(dataclasses.replace(module)) is program
    assert programs.of(dataclasses.replace(module, donated=tuple(not each for each in module.donated))) is not program


def test_the_option_that_alpa_carries_has_each_plan_option_with_the_same_default() -> None:
    assert CFPOption().plan_options == PlanOptions()
    given = PlanOptions(costs="replay", samples=7, refine=0, seed=3, logical_mesh_shapes="all", device_kind="cpu")
    fields = {each.name: getattr(given, each.name) for each in dataclasses.fields(PlanOptions)}
    assert CFPOption(**fields).plan_options == given


def test_a_plan_that_is_given_is_used_for_candidate_stages_too_and_not_ignored(tmp_path: Path) -> None:
    other = PlanOptions(costs="estimate", progress=False)
    of_other_program = plan(model_module("mlp", TINY), request_for((1, 2)), other).plan
    option = CFPOption(costs="estimate", plan=of_other_program, database=tmp_path / "profiles.sqlite", progress=False)
    request = seam.PlanRequest(LogicalDeviceMesh(None, np.arange(2).reshape(1, 2)), 1, (), None)
    with option.planning_stages({}) as planning, pytest.raises(PlanError, match="the plan is for another program"):
        planning.annotate_module(dataclasses.replace(two_layer_module()), request)


def test_a_target_has_no_devices_to_run_programs_on(tmp_path: Path) -> None:
    request = PlanRequest(LogicalMesh((8,)), TargetDevices(target("h100:1x8")))
    options = PlanOptions(database=tmp_path / "profiles.sqlite", progress=False)
    with pytest.raises(
        NoDevicesError, match=r"Say CFPOption\(costs='compile'\) to compile them for it and to model their time"
    ):
        plan(two_layer_module(), request, options)


def test_programs_are_compiled_for_a_target_only(tmp_path: Path) -> None:
    options = PlanOptions(costs="compile", database=tmp_path / "profiles.sqlite", progress=False)
    with pytest.raises(NoDevicesError, match=r"the 1x2 mesh is none of a target. Give alpa_cfp.target"):
        plan(two_layer_module(), request_for((1, 2)), options)
