"""Alpa's dynamic programmes on random tables: each against its twin, numba against Python, all against enumeration."""

from types import SimpleNamespace
from typing import Any

import alpa.util
import numpy as np
import pytest
from alpa.pipeline_parallel.layer_construction import cluster_jaxpr_by_cost
from hypothesis import given
from hypothesis import strategies as st

from oracles.stage_tables import NOTHING, SUBMESHES, Table

tables = st.builds(
    Table,
    seed=st.integers(0, 2**32 - 1),
    num_layers=st.integers(2, 5),
    num_configs=st.integers(1, 2),
    shapes=st.sampled_from(sorted(SUBMESHES)),
    impossible=st.sampled_from([0.0, 0.2, 0.5, 1.0]),
)
micro_batches = st.sampled_from([1, 2, 16, 512])


@given(tables, micro_batches)
def test_the_two_programmes_for_training_find_the_least_cost_of_all_pipelines(table: Table, batches: int) -> None:
    least = min(table.training_cost(pipeline, batches) for pipeline in table.pipelines())
    for cost, pipeline in (table.train(batches), table.train_faster(batches)):
        assert cost == least
        assert pipeline is None or table.training_cost(pipeline, batches) == least
        assert (pipeline is None) == np.isinf(least)


@given(tables)
def test_the_programme_for_inference_finds_the_least_cost_of_all_pipelines(table: Table) -> None:
    least = min(table.inference_cost(pipeline) for pipeline in table.pipelines())
    cost, pipeline = table.infer()
    assert cost == least
    assert pipeline is None or table.inference_cost(pipeline) == least
    assert (pipeline is None) == np.isinf(least)


@given(tables, micro_batches)
def test_numba_finds_the_pipelines_that_python_finds(table: Table, batches: int) -> None:
    compiled = table.train(batches), table.train_faster(batches), table.infer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alpa.util, "_DISABLE_NUMBA", True)
        assert (table.train(batches), table.train_faster(batches), table.infer()) == compiled


@pytest.mark.parametrize("batches", [1, 512])
def test_memory_for_no_stage_behind_leaves_one_stage_on_all_devices(batches: int) -> None:
    table = Table(0, num_layers=4, num_configs=1, shapes="one host", impossible=0.0)
    table.following[:] = 0
    expected = (table.costs[0, 3, 2, 0] * batches, [((0, 4), 2, 0)])
    assert table.train(batches) == table.train_faster(batches) == expected
    table.following[:] = -1
    assert table.train(batches) == table.train_faster(batches) == NOTHING


@pytest.mark.parametrize(("seed", "layers"), [(0, 3), (1, 4)])
def test_numba_cuts_layers_where_python_cuts_them(seed: int, layers: int) -> None:
    rng = np.random.default_rng(seed)
    jaxpr: Any = SimpleNamespace(eqns=list(range(24)))
    heavy = rng.random(24) < 0.6
    sizes = rng.integers(1, 100, (25, 25)).astype(np.float32)
    costs = heavy.astype(np.int32), sizes, np.where(heavy, rng.integers(1, 50, 24), 0).astype(np.float64)
    compiled = cluster_jaxpr_by_cost(jaxpr, layers, 0.6, costs, "flops")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alpa.util, "_DISABLE_NUMBA", True)
        assert cluster_jaxpr_by_cost(jaxpr, layers, 0.6, costs, "flops") == compiled
    slices, _ = compiled
    assert [eqn for part in slices for eqn in part] == jaxpr.eqns
    assert len(slices) == layers
