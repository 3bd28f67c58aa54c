"""Stages of a pipeline are chosen by what their segments take on parts of a target, compiled for each part."""

import importlib.util
from pathlib import Path

import alpa
import pytest

from alpa_cfp import CFPOption, plan_stages, target
from alpa_cfp.database import ProfileDatabase
from alpa_cfp_bench.workloads.model import training_step
from alpa_cfp_bench.workloads.models import abstract
from alpa_cfp_bench.workloads.sizes import TINY


@pytest.mark.skipif(importlib.util.find_spec("jax_cuda12_plugin") is None, reason="jax_cuda12_plugin is not installed")
def test_candidate_stages_are_compiled_for_parts_of_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # alpa writes its table there
    model, database = abstract("mlp", TINY), tmp_path / "profiles.sqlite"
    found = plan_stages(
        training_step(model, alpa.value_and_grad),
        target("h100:1x2"),
        model.state,
        model.batch,
        num_micro_batches=2,
        layer_option=alpa.AutoLayerOption(layer_num=2),
        option=CFPOption(costs="compile", stage_costs="compose", database=database, progress=False),
    )
    assert {each.submesh for each in found.candidates} == {(1, 1), (1, 2)}
    # Each kernel takes 2 us to start, by the model.
    assert all(1e-5 < each.cost_s < 1e-2 for each in found.candidates)
    assert sum(hosts * devices for hosts, devices in (stage.submesh for stage in found.stages)) == 2
    with ProfileDatabase.open(database, readonly=True) as profiles:
        kinds = {key.device_kind.partition(",")[0] for key, _ in profiles.items()}
    assert kinds == {"h100:1x1", "h100:1x2"}
