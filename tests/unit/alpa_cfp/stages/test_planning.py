"""Plans of candidate stages keep to the options, and so does the account of a chosen one."""

from pathlib import Path

import pytest

from alpa_cfp import PlanOptions
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.planner.request import LocalDevices, PlanRequest
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.stages import planning, stage_costs
from alpa_cfp.stages.session import StageSession
from unit.alpa_cfp.training_steps import stage_module


def test_a_stage_is_planned_and_explained_within_the_limits_of_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = PlanOptions(
        database=tmp_path / "profiles.sqlite", costs="estimate", search_limit_s=7.0, search_memory_bytes=1 << 20
    )
    searches: list[PlanSearch] = []

    class Noted(PlanSearch):
        def __init__(self, *arguments: object, **named: object) -> None:
            super().__init__(*arguments, **named)  # pyright: ignore[reportArgumentType]
            searches.append(self)

    for module in (planning, stage_costs):
        monkeypatch.setattr(module, "PlanSearch", Noted)
    program = AnalysedProgram(stage_module("mlp"))
    request = PlanRequest(LogicalMesh((1, 4)), LocalDevices((None,) * 4, (1, 4)), num_micro_batches=2)
    with StageSession.open(options) as session:
        stage = planning.compose_stage(program, request, session)
    explained = planning.explain_stage(program, stage.plan, stage.composed.evidence, request, options)
    assert explained.account is not None
    assert len(searches) == 2
    assert {search.limits for search in searches} == {(7.0, 1 << 20)}
