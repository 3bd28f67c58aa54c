"""Recorded profiles are replayed without devices; what is not recorded, or not clear, is an error that says so."""

import dataclasses

import jax
import pytest

from alpa_cfp.database import ProfileDatabase
from alpa_cfp.errors import ReplayError
from alpa_cfp.profiling import (
    DeviceDescription,
    MeasureOptions,
    key_of,
    recorded_devices,
    replay,
)
from alpa_cfp.spmd.compile.executable import Client
from unit.alpa_cfp.profiling.programs import ROWS, measure, product, scaled, uncompilable

pytestmark = pytest.mark.slow

QUIET = MeasureOptions(samples=2, progress=False, isolated=False)
MODULES = [scaled(2), product(), uncompilable(), product(ROWS, result=ROWS), product(name="again")]
OTHERS = DeviceDescription("NVIDIA H100", "8", "0.9.1", "--xla_gpu_autotune_level=0")


@pytest.fixture(scope="module")
def database() -> ProfileDatabase:
    database = ProfileDatabase.in_memory()
    measure(MODULES, Client(jax.devices()[:8]), database, QUIET)
    return database


def recorded_on(*several: DeviceDescription) -> ProfileDatabase:
    """The profile of one program, recorded on each of these devices."""
    database = ProfileDatabase.in_memory()
    (profile,) = measure([scaled(2)], Client(jax.devices()[:8]), ProfileDatabase.in_memory(), QUIET)
    for devices in several:
        database.put(key_of(scaled(2), devices)[0], profile)
    return database


def test_profiles_are_replayed_as_they_were_measured(database: ProfileDatabase) -> None:
    devices = recorded_devices(database, (2, 4))
    assert devices == DeviceDescription.of(jax.devices()[:8])
    replayed = replay(MODULES, devices, database)
    assert replayed == measure(MODULES, Client(jax.devices()[:8]), database, QUIET)
    assert [profile.status for profile in replayed].count("failed") == 1


def test_profiles_of_devices_that_are_not_here_are_found_and_replayed() -> None:
    database = recorded_on(OTHERS)
    assert recorded_devices(database, (2, 4)) == OTHERS
    (profile,) = replay([scaled(2)], OTHERS, database)
    assert profile.status == "measured"


def test_programs_without_a_profile_are_named(database: ProfileDatabase) -> None:
    modules = [scaled(2), *(dataclasses.replace(scaled(factor), name=f"p{factor}") for factor in range(3, 10))]
    with pytest.raises(ReplayError, match=r"^7 of 8 programs have no profile on cpu .*: p3 .*p7 \(\w+\) and 2 more"):
        replay(modules, recorded_devices(database, (2, 4)), database)


def test_of_several_kinds_of_devices_one_must_be_named() -> None:
    database = recorded_on(OTHERS, dataclasses.replace(OTHERS, device_kind="NVIDIA H200"))
    with pytest.raises(
        ReplayError, match=r"2x4 mesh on 2 kinds of devices or compilers: NVIDIA H100 .*; NVIDIA H200 .*0\.9\.1"
    ):
        recorded_devices(database, (2, 4))
    assert recorded_devices(database, (2, 4), device_kind="NVIDIA H100") == OTHERS


@pytest.mark.parametrize("field", ["device_kind", "hosts", "jaxlib_version", "xla_flags"])
def test_every_part_of_a_description_tells_devices_apart(field: str) -> None:
    with pytest.raises(ReplayError, match=rf"on 2 kinds of devices .* They differ in {field}\. "):
        recorded_devices(recorded_on(OTHERS, dataclasses.replace(OTHERS, **{field: "4+4"})), (2, 4))


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ({"device_kind": "NVIDIA H200"}, r"device_kind\. Say which are meant: CFPOption\(device_kind=\.\.\.\)$"),
        ({"device_kind": "NVIDIA H200", "hosts": "4+4"}, r"device_kind and hosts\. Say which are meant"),
        ({"jaxlib_version": "0.10.2"}, r"jaxlib_version\. Put those of one version .* export FILE --jaxlib VERSION"),
        ({"hosts": "4+4"}, r"hosts\. No option selects .* \(ProfileDatabase\.items and put\)"),
    ],
)
def test_the_error_advises_what_tells_the_devices_apart(change: dict[str, str], advice: str) -> None:
    with pytest.raises(ReplayError, match=advice):
        recorded_devices(recorded_on(OTHERS, dataclasses.replace(OTHERS, **change)), (2, 4))


def test_a_kind_that_leaves_several_is_not_advised_again() -> None:
    database = recorded_on(OTHERS, dataclasses.replace(OTHERS, hosts="4+4"))
    with pytest.raises(ReplayError) as caught:
        recorded_devices(database, (2, 4), device_kind=OTHERS.device_kind)
    assert "device_kind" not in str(caught.value)


def test_profiles_of_one_host_layout_copied_by_their_keys_are_replayed() -> None:
    both, one = recorded_on(OTHERS, dataclasses.replace(OTHERS, hosts="4+4")), ProfileDatabase.in_memory()
    for key, profile in both.items():
        if key.hosts == "8":
            one.put(key, profile)
    assert recorded_devices(one, (2, 4)) == OTHERS


def test_a_mesh_that_was_never_measured_is_an_error_with_those_that_were() -> None:
    with pytest.raises(ReplayError, match=r"no profiles of a 1x8 mesh\. It has: 2x4 on NVIDIA H100 \(hosts 8"):
        recorded_devices(recorded_on(OTHERS), (1, 8))
    with pytest.raises(ReplayError, match=r"2x4 mesh with device_kind='cpu'\. It has: 2x4 on NVIDIA H100"):
        recorded_devices(recorded_on(OTHERS), (2, 4), device_kind="cpu")
    with pytest.raises(ReplayError, match="It has: none at all"):
        recorded_devices(ProfileDatabase.in_memory(), (2, 4))
