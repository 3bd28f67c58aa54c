"""Where the stages of a pipeline are sharded: by alpa's compile workers, or in this process."""

from types import SimpleNamespace
from typing import Any

import alpa  # noqa: F401  before any of its replacements
import pytest
import ray
from alpa import AutoShardingOption

from alpa_cfp import CFPOption
from alpa_on_jax.alpa.pipeline_parallel.compile_executable import _must_be_here
from alpa_on_jax.in_process.place import virtual_mesh


@pytest.mark.parametrize(("free", "is_here"), [(1.0, True), (2.0, False), (3.0, False)])
def test_stages_are_sharded_here_where_ray_has_no_cpu_for_each_worker(
    monkeypatch: pytest.MonkeyPatch, free: float, is_here: bool
) -> None:
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": free})
    meshes: Any = [SimpleNamespace(host_info=[{}])] * 2
    assert _must_be_here(meshes, [AutoShardingOption()]) is is_here


def test_stages_are_sharded_here_where_their_planner_or_their_devices_are() -> None:
    elsewhere: Any = SimpleNamespace(host_info=[{}])
    here = virtual_mesh(lambda hosts, info, devices: SimpleNamespace(host_info=info))
    assert _must_be_here([elsewhere], [CFPOption()])
    assert _must_be_here([here], [AutoShardingOption()])
