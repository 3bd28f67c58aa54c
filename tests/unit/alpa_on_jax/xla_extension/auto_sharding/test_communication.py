"""Costs of communication: Alpa's formulas, what resharding is free, what is impossible, and measured costs."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_on_jax.xla_extension.auto_sharding.communication import INFINITY_COST, Communication
from alpa_on_jax.xla_extension.auto_sharding.specs import BOTH, FIRST, NONE, SECOND, Mesh, is_replicated
from unit.alpa_on_jax.xla_extension.auto_sharding.programs import all_specs, options, parts

ROW, COLUMN, WHOLE = (FIRST, NONE), (NONE, FIRST), (NONE, NONE)


@st.composite
def _reshardings(draw: st.DrawFn):
    shape = draw(st.sampled_from([(4, 1), (1, 4), (2, 2), (2, 4), (4, 2)]))
    specs = all_specs(Mesh(shape), 3)
    return Communication(options(shape)), draw(st.sampled_from(specs)), draw(st.sampled_from(specs))


def _needs_new_elements(mesh: Mesh, source: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether some device must have elements of an array that it does not hold."""
    value = np.arange(8**3).reshape(8, 8, 8)
    held, needed = ([set(p.ravel().tolist()) for p in parts(mesh, spec, value)] for spec in (source, target))
    return any(not after <= before for before, after in zip(held, needed, strict=True))


@pytest.mark.parametrize(("devices", "size_bytes"), [(2, 64.0), (4, 1000.0), (8, 123.0)])
def test_collectives_cost_latency_plus_what_a_ring_sends(devices, size_bytes):
    communication = Communication(options((devices, 1), mesh_alpha=(3.0, 1.0), mesh_beta=(0.5, 9.0)))
    sent = 0.5 * (devices - 1) / devices * size_bytes
    assert communication.all_reduce(size_bytes, 0) == pytest.approx(3 + 2 * sent + 0.01, abs=0.5)
    assert communication.all_gather(size_bytes, 0) == pytest.approx(3 + sent + 0.1, abs=0.5)
    assert communication.reduce_scatter(size_bytes, 0) == pytest.approx(3 + sent + 0.001, abs=0.5)
    assert communication.all_to_all(size_bytes, 0) == pytest.approx(3 + sent / devices * (devices / 2) + 0.001, abs=0.5)


def test_costs_are_rounded_before_the_part_that_decides_between_equals():
    communication = Communication(options((4, 1)))
    assert communication.all_reduce(1024, 0) == 1 + 2 * 768 + 0.01
    assert communication.all_reduce(1, 0) == 3 + 0.01  # 1 + 1.5, rounded up
    assert communication.all_gather(1024, 0) == 1 + 768 + 0.1


def test_each_axis_has_its_own_latency_and_bandwidth():
    communication = Communication(options((2, 4), mesh_alpha=(1.0, 10.0), mesh_beta=(1.0, 0.1)))
    assert communication.all_reduce(1000, 0) == 1 + 1000 + 0.01
    assert communication.all_reduce(1000, 1) == 10 + 150 + 0.01


def test_communication_over_an_axis_of_one_device_costs_its_latency():
    assert Communication(options((4, 1))).all_reduce(1e6, 1) == 1.01


def test_a_reduce_scatter_and_an_all_gather_cost_as_much_as_an_all_reduce_but_for_a_second_latency():
    communication = Communication(options((4, 1), mesh_alpha=(0.0, 0.0)))
    both = communication.reduce_scatter(4096, 0) + communication.all_gather(4096, 0)
    assert both == pytest.approx(communication.all_reduce(4096, 0), abs=0.2)


def test_forced_costs_replace_the_computed_ones():
    communication = Communication(options((4, 1), all_gather_cost=7.0, all_to_all_cost=8.0))
    assert communication.all_gather(1e9, 0) == 7.0
    assert communication.all_to_all(1e9, 0) == 8.0
    assert communication.resharding(1e9, ROW, COLUMN) == 8.0


def test_where_the_batch_dim_is_forced_onto_an_axis_only_all_reduces_go_along_it():
    communication = Communication(options((2, 4), force_batch_dim_to_mesh_axis=0))
    assert communication.all_gather(8, 0) == communication.all_to_all(8, 0) == INFINITY_COST
    assert communication.all_gather(8, 1) < INFINITY_COST
    assert communication.all_to_all(8, 1) < INFINITY_COST
    assert communication.all_reduce(8, 0) < INFINITY_COST


def test_a_dot_is_computed_twice_only_where_that_is_allowed():
    assert Communication(options((2, 2))).recompute(64) == INFINITY_COST
    allowed = Communication(options((2, 2), allow_recompute_heavy_op=True))
    assert allowed.recompute(64) == allowed.all_reduce(64, 0) + allowed.all_reduce(64, 1)


@given(_reshardings())
def test_resharding_is_free_exactly_where_no_device_needs_new_elements(case):
    communication, source, target = case
    free = communication.resharding(8**3 * 4.0, source, target) == 0
    assert free is not _needs_new_elements(communication.mesh, source, target)


@given(_reshardings())
def test_gathering_a_whole_value_and_splitting_one_are_always_possible(case):
    communication, source, _ = case
    assert communication.resharding(2048.0, source, (NONE,) * 3) < INFINITY_COST
    assert communication.resharding(2048.0, (NONE,) * 3, source) == 0


@given(_reshardings())
def test_on_a_mesh_of_one_long_axis_every_resharding_is_possible(case):
    communication, source, target = case
    if not communication.mesh.is_2d:
        assert communication.resharding(2048.0, source, target) < INFINITY_COST


@given(_reshardings())
def test_on_a_2d_mesh_only_moves_between_dims_are_impossible(case):
    communication, source, target = case
    if communication.resharding(2048.0, source, target) >= INFINITY_COST:
        assert communication.mesh.is_2d
        assert not is_replicated(source)
        assert not is_replicated(target)
        gathered_only = all(new in (NONE, old) for old, new in zip(source, target, strict=True))
        assert not gathered_only or BOTH in source


def test_moving_a_split_to_another_dim_is_an_all_to_all_of_the_whole_value():
    communication = Communication(options((4, 1)))
    assert communication.resharding(1024, ROW, COLUMN) == communication.all_to_all(1024, 0)


def test_gathering_along_two_axes_costs_both_gathers_the_second_of_a_larger_value():
    communication = Communication(options((2, 4)))
    cost = communication.resharding(1024, (FIRST, SECOND), WHOLE)
    assert cost == communication.all_gather(256, 0) + communication.all_gather(1024, 1)


def test_from_both_axes_on_one_dim_to_the_first_axis_is_a_gather_along_the_second():
    communication = Communication(options((2, 4)))
    assert communication.resharding(1024, (BOTH, NONE), ROW) == communication.all_gather(1024 / 8, 1)


def test_between_two_dims_split_and_one_split_over_all_devices_is_an_all_to_all():
    communication = Communication(options((2, 4)))
    there = communication.resharding(1024, (FIRST, SECOND), (BOTH, NONE))
    back = communication.resharding(1024, (BOTH, NONE), (FIRST, SECOND))
    assert there == back == communication.all_to_all(1024 / 8, 1)


@given(_reshardings(), st.floats(1, 1e6))
def test_a_matrix_of_costs_is_the_cost_of_each_pair(case, size_bytes):
    communication, source, target = case
    sources, targets = communication.intern([source, target]), communication.intern([target])
    matrix = communication.resharding_matrix(size_bytes, sources, targets)
    assert matrix.tolist() == [[communication.resharding(size_bytes, a, target)] for a in (source, target)]
    assert communication.resharding_matrix(size_bytes, sources, targets) is matrix


def test_the_same_specs_are_the_same_object_once_interned():
    communication = Communication(options((2, 2)))
    assert communication.intern([ROW, COLUMN]) is communication.intern([ROW, COLUMN])
    assert communication.intern([ROW, COLUMN]) is not communication.intern([COLUMN, ROW])


ALONG_FIRST, ALONG_SECOND = ((0, 2), (1, 3)), ((0, 1), (2, 3))


def _profile(**tables: Any) -> Any:
    """A result of alpa's profiling: seconds by number of float32 elements, along the axes of a 2 x 2 mesh."""
    kinds = ("all_reduce", "all_gather", "reduce_scatter")
    return SimpleNamespace(**{f"{kind}_cost_dict": tables.get(kind, {}) for kind in kinds})


def _measured(first: list[tuple[int, float]], second: list[tuple[int, float]]) -> dict[Any, Any]:
    return {(ALONG_FIRST, "float32"): first, (ALONG_SECOND, "float32"): second}


REDUCES = _measured([(0, 1.0), (100, 3.0), (200, 4.0)], [(0, 0.0), (100, 10.0), (200, 20.0)])


@pytest.mark.parametrize(("elements", "seconds"), [(0, 1.0), (50, 2.0), (100, 3.0), (150, 3.5), (200, 4.0), (400, 6.0)])
def test_measured_costs_are_interpolated_and_extended_less_that_of_nothing(elements, seconds):
    communication = Communication(options((2, 2), profile=_profile(all_reduce=REDUCES)))
    assert communication.all_reduce(4 * elements, 0) == pytest.approx(seconds - 1.0)


def test_each_axis_is_looked_up_by_the_groups_of_devices_that_communicate():
    communication = Communication(options((2, 2), profile=_profile(all_reduce=REDUCES)))
    assert communication.all_reduce(400, 0) == pytest.approx(2.0)
    assert communication.all_reduce(400, 1) == pytest.approx(10.0)


def test_what_was_not_measured_is_half_an_all_reduce():
    communication = Communication(options((2, 2), profile=_profile(all_reduce=REDUCES)))
    assert communication.all_gather(400, 0) == communication.reduce_scatter(400, 0) == pytest.approx(1.0)


def test_an_all_to_all_is_taken_from_the_gather_of_one_part():
    gathers = _measured([(0, 0.0), (100, 7.0)], [(0, 0.0), (100, 1.0)])
    communication = Communication(options((2, 2), profile=_profile(all_reduce=REDUCES, all_gather=gathers)))
    assert communication.all_gather(400, 0) == pytest.approx(7.0)
    assert communication.all_to_all(400, 0) == pytest.approx(3.5)


def test_a_profile_without_measurements_leaves_alpas_formulas():
    assert Communication(options((4, 1), profile=_profile())).all_reduce(1024, 0) == 1 + 2 * 768 + 0.01


@pytest.mark.parametrize("axis", [0, 1])
@given(st.floats(0, 2000))
def test_the_profile_agrees_with_alpas_own_estimate(axis, size_bytes):
    from alpa.mesh_profiling import MeshProfilingResult

    profile: Any = MeshProfilingResult()
    profile.all_reduce_cost_dict.update(REDUCES)
    communication = Communication(options((2, 2), profile=profile))
    group = (ALONG_FIRST, ALONG_SECOND)[axis]
    expected = profile.estimate_all_reduce(group, int(size_bytes / 4), "float32")
    assert communication.all_reduce(size_bytes, axis) == pytest.approx(expected)
