"""Schedules of pipelines: what each has to hold, and the seconds that papers say of them."""

from types import SimpleNamespace

import numpy as np
import pytest
from alpa.pipeline_parallel.schedules import PipeDreamFlush
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.stages.schedules import Schedule, interleaved, zero_bubble

MESHES, CHUNKS, MICRO_BATCHES = st.integers(1, 6), st.integers(1, 4), st.integers(1, 14)
SCHEDULES = st.one_of(
    st.builds(interleaved, MESHES, CHUNKS, MICRO_BATCHES), st.builds(zero_bubble, MESHES, MICRO_BATCHES)
)


def stages_of(schedule: Schedule, mesh: int) -> set[int]:
    """The stages of a mesh, as the module says."""
    count = schedule.forward_stages
    forward = range(mesh, count, len(schedule.orders))
    return {stage for k in forward for stage in (k, *(part * count - 1 - k for part in range(2, schedule.parts + 1)))}


@given(SCHEDULES, st.data())
def test_each_mesh_runs_each_micro_batch_of_each_of_its_stages_once(schedule: Schedule, data: st.DataObject) -> None:
    micro_batches = 1 + max(micro_batch for micro_batch, _ in schedule.orders[0])
    mesh = data.draw(st.integers(0, len(schedule.orders) - 1))
    expected = [(number, stage) for number in range(micro_batches) for stage in stages_of(schedule, mesh)]
    assert sorted(schedule.orders[mesh]) == sorted(expected)


@given(SCHEDULES)
def test_micro_batches_of_a_stage_run_in_their_order(schedule: Schedule) -> None:
    # Alpa's emitter relies on it where it adds up gradients.
    for order in schedule.orders:
        for stage in {stage for _, stage in order}:
            numbers = [micro_batch for micro_batch, own in order if own == stage]
            assert numbers == sorted(numbers)


@given(SCHEDULES, st.data())
def test_no_task_starts_before_its_operands_are_there_and_its_mesh_is_free(
    schedule: Schedule, data: st.DataObject
) -> None:
    count = schedule.parts * schedule.forward_stages
    stage_s = data.draw(st.lists(st.floats(0.1, 3), min_size=count, max_size=count))
    starts = schedule.start_times(stage_s)
    assert starts is not None
    at_s = {
        task: start_s
        for order, own in zip(schedule.orders, starts, strict=True)
        for task, start_s in zip(order, own, strict=True)
    }
    for task, start_s in at_s.items():
        before = schedule.before(task)
        if before is not None:
            assert start_s >= at_s[before] + stage_s[before[1]]
    for order, own in zip(schedule.orders, starts, strict=True):
        ends = [start_s + stage_s[stage] for (_, stage), start_s in zip(order, own, strict=True)]
        assert all(end <= start for end, start in zip(ends, own[1:], strict=False))


@given(SCHEDULES)
def test_ticks_have_all_tasks_in_the_order_of_each_mesh(schedule: Schedule) -> None:
    rows = schedule.ticks()
    for mesh, order in enumerate(schedule.orders):
        assert [row[mesh] for row in rows if row[mesh] is not None] == list(order)


@given(MESHES, MICRO_BATCHES)
def test_with_one_stage_a_mesh_interleaved_is_alpas_1f1b(meshes: int, micro_batches: int) -> None:
    own = PipeDreamFlush(
        dependency=np.zeros((2 * meshes, 2 * meshes)),
        meshes=[SimpleNamespace()] * meshes,
        apply_grad_placement={},
        num_batch=micro_batches,
    )
    orders = [[row[mesh] for row in own.schedules if row[mesh]] for mesh in range(meshes)]
    assert [list(order) for order in interleaved(meshes, 1, micro_batches).orders] == orders


@given(MESHES, CHUNKS, st.integers(1, 3))
def test_the_bubble_of_an_interleaved_schedule_is_a_chunk_of_that_of_1f1b(
    meshes: int, chunks: int, groups: int
) -> None:
    # arXiv 2104.04473, section 2.2.2: (p - 1) (t_f + t_b) / v beside m (t_f + t_b).
    forward_s, backward_s, micro_batches = 1.0, 2.0, groups * meshes
    stages = meshes * chunks
    schedule = interleaved(meshes, chunks, micro_batches)
    actual = schedule.step_s([forward_s / chunks] * stages + [backward_s / chunks] * stages)
    assert actual == pytest.approx((micro_batches + (meshes - 1) / chunks) * (forward_s + backward_s))


@given(MESHES, st.integers(0, 12))
def test_the_bubble_of_zero_bubble_is_what_the_paper_says(meshes: int, more: int) -> None:
    # arXiv 2401.10241, table 2: (p - 1) (T_F + T_B - T_W) beside m (T_F + T_B + T_W), here all 1.
    micro_batches = meshes + more
    schedule = zero_bubble(meshes, micro_batches)
    assert schedule.step_s([1.0] * 3 * meshes) == 3 * micro_batches + meshes - 1


@given(MESHES, MICRO_BATCHES)
def test_zero_bubble_keeps_activations_of_no_more_micro_batches_than_1f1b_does_at_most(
    meshes: int, micro_batches: int
) -> None:
    most = interleaved(meshes, 1, micro_batches).kept(0)
    assert all(zero_bubble(meshes, micro_batches).kept(mesh) <= most for mesh in range(meshes))


@given(MESHES, st.integers(2, 4), st.integers(1, 3))
def test_the_first_mesh_keeps_more_activations_by_an_interleaved_schedule(
    meshes: int, chunks: int, groups: int
) -> None:
    # arXiv 2104.04473: 2 (p - 1) + (v - 1) p + 1 of a v-th of the layers; by 1F1B p of all.
    micro_batches = groups * meshes
    most = min(2 * (meshes - 1) + (chunks - 1) * meshes + 1, chunks * micro_batches)
    assert interleaved(meshes, chunks, micro_batches).kept(0) == most
    assert interleaved(meshes, 1, micro_batches).kept(0) == meshes


@given(MESHES, MICRO_BATCHES, st.integers(0, 2))
def test_what_is_handed_on_to_gradients_takes_memory_until_these_are_computed(
    meshes: int, micro_batches: int, handed_on: int
) -> None:
    schedule = zero_bubble(meshes, micro_batches)
    for mesh in range(meshes):
        alone = schedule.kept(mesh)
        assert alone + handed_on - 1 <= schedule.kept(mesh, handed_on) <= (1 + handed_on) * alone
