"""On which meshes candidate stages are timed at the same time."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from alpa_on_jax.alpa.pipeline_parallel.stage_workers import timed_at_once
from alpa_on_jax.ray_mesh.cluster import hosts


def mesh(machines: Sequence[str]) -> Any:
    return SimpleNamespace(host_info=[{hosts.ADDRESS: machine} for machine in machines])


MESHES = st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=2).map(mesh), min_size=1, max_size=8)


def machines_of(mesh: Any) -> set[str]:
    return {host[hosts.ADDRESS] for host in mesh.host_info}


@given(MESHES)
def test_where_devices_share_the_cores_of_a_machine_one_mesh_of_it_is_timed_at_a_time(meshes: list[Any]) -> None:
    chosen = timed_at_once(meshes, is_alone=True)
    assert all(not machines_of(a) & machines_of(b) for i, a in enumerate(chosen) for b in chosen[:i])
    # None is left out without need.
    used = set().union(*map(machines_of, chosen))
    assert all(machines_of(mesh) & used for mesh in meshes)


@given(MESHES)
def test_meshes_of_devices_of_their_own_are_all_timed_at_once(meshes: list[Any]) -> None:
    assert timed_at_once(meshes, is_alone=False) == meshes
