"""The workers of several processes: each has as many devices as its process has in the mesh, in the same places."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.profiling import MeasureOptions
from alpa_cfp.profiling.processes.hosts import InProcessHost, WorkerHost
from alpa_cfp.profiling.processes.joining import Joined, Member
from alpa_cfp.profiling.processes.measuring import _setups, own_host


def device(process: int, number: int, platform: str = "cpu") -> Any:
    return SimpleNamespace(
        process_index=process, id=2048 * process + number, platform=platform, device_kind=f"{process}.{number}"
    )


def joined(*processes: int) -> Joined:
    first, *others = (Member(process, f"10.0.0.{process}", "a machine") for process in processes)
    return Joined(first, tuple((other, MagicMock()) for other in others))


@given(st.permutations([(1, 0), (1, 3), (4, 1), (4, 2), (4, 5), (7, 0)]))
def test_a_device_of_the_mesh_has_the_place_of_its_process_and_its_number_there(mesh: list[tuple[int, int]]) -> None:
    setups = _setups(joined(1, 4, 7), [device(*each) for each in mesh])
    # The workers' devices, worker by worker.
    places = sorted(mesh)
    for setup in setups:
        assert [places[position] for position in setup.device_ids] == mesh
        assert setup.device_kinds == tuple(f"{process}.{number}" for process, number in mesh)
    found = [setup.place for setup in setups if setup.place is not None]
    assert [(place.host, place.num_devices, place.ip) for place in found] == [
        (0, 2, "10.0.0.1"), (1, 3, "10.0.0.4"), (2, 1, "10.0.0.7"),
    ]  # fmt: skip


def test_a_worker_has_the_flags_of_the_first_process_but_its_own_number_of_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--one=1 --xla_force_host_platform_device_count=8 --two=2")
    for setup in _setups(joined(0, 1), [device(0, 0), device(1, 0)]):
        assert setup.environment == {"XLA_FLAGS": "--one=1 --two=2"}


@pytest.mark.parametrize(("platform", "kind"), [("cpu", WorkerHost), ("gpu", InProcessHost), ("tpu", InProcessHost)])
def test_processes_measure_themselves_where_the_memory_of_devices_is_theirs(platform: str, kind: type) -> None:
    host = own_host(joined(0, 1), [device(0, 0, platform), device(1, 0, platform)], MeasureOptions())
    assert type(host) is kind
    assert (host.name, host.machine) == ("process 0", "a machine")
