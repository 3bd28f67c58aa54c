"""The setup of a worker names devices as the worker numbers them."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from alpa_cfp.errors import ProfilingError
from alpa_cfp.profiling.process.setups import setup_of
from alpa_cfp.spmd.compile.executable import Client


def devices(*ids: int, process: int = 0) -> list[Any]:
    """Devices of a process that has these and no others."""
    made = [SimpleNamespace(id=each, process_index=process, platform="cpu", device_kind="cpu") for each in ids]
    for each in made:
        each.client = SimpleNamespace(local_devices=lambda: made)
    return made


def ids_for(mesh: Sequence[Any]) -> tuple[int, ...]:
    return setup_of(Client(mesh)).device_ids


def test_a_worker_has_the_devices_of_the_mesh_in_its_order() -> None:
    one, two, three = devices(0, 1, 2)
    assert ids_for([three, one, two]) == (2, 0, 1)


def test_a_worker_of_one_of_several_processes_numbers_its_devices_from_0() -> None:
    first, second, third = devices(2048, 2049, 2050, process=1)
    assert ids_for([third, first]) == (2, 0)
    assert ids_for([second]) == (1,)


def test_a_worker_has_no_devices_of_other_processes() -> None:
    mesh = [*devices(0, 1), *devices(2048, process=1)]
    with pytest.raises(ProfilingError, match="the mesh has devices of several processes"):
        setup_of(Client(mesh))
