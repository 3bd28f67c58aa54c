"""What is compared of pipelines: tables of costs, shapes of submeshes, what is kept as JSON."""

import json

import numpy as np
import pytest

from alpa_cfp_bench.case import CFP, COMPOSED, ILP, Pipeline
from alpa_cfp_bench.pipelines import agreement, submesh_of
from alpa_cfp_bench.report import to_json
from alpa_cfp_bench.stage_choice import StageChoice
from unit.benchmarks.alpa_cfp_bench.comparisons import MACHINE, choice, pipeline_comparison, pipeline_outcome


def test_tables_agree_in_the_stages_that_both_have() -> None:
    composed, measured = np.array([1.0, 2.0, 6.0, np.inf]), np.array([2.0, 4.0, 6.0, 1.0])
    found = agreement(composed, measured)
    assert found is not None
    assert (found.stages, found.median_ratio) == (3, 0.5)
    assert found.rank_correlation == pytest.approx(1.0)


def test_tables_that_say_the_opposite_have_a_correlation_of_minus_one() -> None:
    found = agreement(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0]))
    assert found is not None
    assert found.rank_correlation == pytest.approx(-1.0)


def test_tables_with_no_two_stages_in_common_are_not_compared() -> None:
    assert agreement(np.array([1.0, np.inf]), np.array([1.0, 2.0])) is None


def test_the_predicted_latency_is_that_of_alpas_dynamic_programme() -> None:
    # Both stages once, and the slower one once more for each of the 3 other micro-batches.
    assert choice(1.0, 2.0, 2.5).latency_s(4) == pytest.approx(0.003 + 3 * 0.002)
    assert StageChoice().latency_s(4) is None


@pytest.mark.parametrize(
    ("stages", "hosts", "devices", "submesh"),
    [
        (2, 1, 4, (1, 2)),
        (4, 2, 2, (1, 1)),
        (2, 2, 4, (1, 4)),
        (2, 4, 2, (2, 2)),
        (3, 1, 4, None),
        (2, 3, 2, None),
        (None, 1, 4, None),
    ],
)
def test_a_stage_has_whole_hosts_or_a_part_of_one(
    stages: int | None, hosts: int, devices: int, submesh: tuple[int, int] | None
) -> None:
    assert submesh_of(Pipeline(4, stages, "1f1b"), hosts, devices) == submesh


def test_all_that_was_found_out_is_kept_as_json() -> None:
    content = json.loads(to_json(pipeline_comparison(), MACHINE, "alpa-cfp bench"))
    assert list(content["methods"]) == [CFP, COMPOSED, ILP]
    assert content["pipeline"] == {"layers": 2, "stages": None, "schedule": "1f1b"}
    assert content["table_agreement"]["median_ratio"] == 1.5
    own = content["methods"][CFP]
    # Of the 7 programs that CFP measured, 5 were for candidate stages.
    assert (own["stage_programs"], own["profiled"], own["programs_to_choose"]) == (12, 7, 12 + 5)
    assert own["predicted_ms"] == 9.0
    assert own["planning_parts_s"]["profile"] == 4.5
    assert own["stages"][1] == {
        "layers": [1],
        "submesh": [1, 2],
        "logical_mesh": [2, 1],
        "cost_ms": 2.0,
        "memory_bytes": 2_000_000,
    }
    assert content["methods"][ILP]["profiled"] is None


def test_what_was_not_chosen_by_costs_has_none() -> None:
    found = pipeline_comparison(pipeline_outcome(CFP, 40.0, choice=StageChoice(), predicted_s=None))
    content = json.loads(to_json(found, MACHINE, ""))
    assert content["table_agreement"] is None
    assert content["methods"][CFP]["predicted_ms"] is None
