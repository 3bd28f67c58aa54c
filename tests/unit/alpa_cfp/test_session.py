"""What plans of candidate stages need: fewer measurements than a plan of its own, and on one device none."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from alpa.shard_parallel.auto_sharding import LogicalDeviceMesh

from alpa_cfp import CFPOption
from alpa_cfp.errors import NoDevicesError
from alpa_cfp.planner import plan_module
from alpa_on_jax.xla_extension.planner import PlanRequest
from unit.alpa_cfp.steps import two_layer_module


@pytest.mark.parametrize("margin", [1.0, 1.5, math.inf])
def test_candidate_stages_are_pruned_closer_and_not_refined(tmp_path: Path, margin: float) -> None:
    option = CFPOption(database=tmp_path / "profiles.sqlite", pruning_margin=margin)
    with option.planning_stages() as planning:
        assert planning.refine == 0
        assert planning.pruning_margin**2 == pytest.approx(margin)


def test_a_candidate_stage_for_one_device_needs_no_profiles(tmp_path: Path) -> None:
    option = CFPOption(database=tmp_path / "profiles.sqlite", progress=False)
    for devices in (1, 2):
        request = PlanRequest(LogicalDeviceMesh(None, np.arange(devices).reshape(1, devices)), 1, (), None)
        module = dataclasses.replace(two_layer_module())
        with option.planning_stages() as planning:
            if devices == 1:
                assert plan_module(module, request, planning, planning.session).costs == "estimate"
            else:
                with pytest.raises(NoDevicesError):
                    plan_module(module, request, planning, planning.session)
