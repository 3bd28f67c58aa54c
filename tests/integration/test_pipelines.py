"""Pipelines within this process against the serial run: models, schedules, numbers of stages, who shards a stage."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from alpa import AutoLayerOption, AutoStageOption, UniformStageOption
from alpa.pipeline_parallel.stage_construction import get_last_dp_result

from alpa_cfp import CFPOption, CFPPipeshardParallel
from alpa_cfp.database import ProfileDatabase
from integration.pipelines import COVERING, FACTORS, Case, cases, hold_steps, pipeline

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_pipelines")]


@pytest.mark.parametrize("case", cases("in this process"), ids=str)
def test_what_a_pipeline_gives_equals_the_serial_run(case: Case) -> None:
    case.hold()


def test_the_cases_here_and_on_hosts_let_each_value_meet_each_other() -> None:
    factors = {**FACTORS, "where": tuple(COVERING)}
    run = [
        {**{name: getattr(case, name) for name in FACTORS}, "where": where}
        for where, chosen in COVERING.items()
        for case in chosen
    ]
    for one, other in itertools.combinations(factors, 2):
        met = {(case[one], case[other]) for case in run}
        assert met == set(itertools.product(factors[one], factors[other])), f"{one} and {other}"


def test_cfp_measures_the_parts_of_each_stage_on_devices_like_the_stages(tmp_path: Path) -> None:
    database = tmp_path / "profiles.sqlite"
    option = CFPOption(database=database, samples=2, refine=0, progress=False)
    method = CFPPipeshardParallel(
        num_micro_batches=2,
        default_auto_sharding_option=option,
        layer_option=AutoLayerOption(layer_num=2),
        stage_option=UniformStageOption(num_stages=2),
    )
    hold_steps("mlp", method)
    with ProfileDatabase.open(database, readonly=True) as profiles:
        measured = [(key, profile) for key, profile in profiles.items() if profile.status == "measured"]
    assert measured
    assert {np.prod(key.mesh_shape) for key, _ in measured} == {4}


def test_stages_are_chosen_within_one_process_where_their_costs_are_composed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    option = CFPOption(costs="estimate", stage_costs="compose", progress=False)
    stages = AutoStageOption(submesh_physical_shape_space="manual", manually_specified_submeshes=((1, 4),))
    method = pipeline(2, stage_option=stages, default_auto_sharding_option=option)
    hold_steps("mlp", method)
    _, layers, shapes, _, _ = get_last_dp_result()
    assert (layers, shapes) == ([[0], [1]], [(1, 4)] * 2)
    # Three candidates on two meshes each, 1x4 and 2x2, though alpa has four options for each; and the two stages.
    assert len(option.plans) == 3 * 2 + 2
