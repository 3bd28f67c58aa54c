"""Profiles from the database alone, for planning where there are no devices of that kind.

Takes modules, and the devices that the database has profiles of; gives the profiles that were measured there.
Invariant: nothing is compiled, run or written, so the same database gives the same profiles.
"""

from collections.abc import Sequence
from dataclasses import fields

from alpa_cfp.database import Profile, ProfileDatabase
from alpa_cfp.errors import ReplayError
from alpa_cfp.profiling.keys import DeviceDescription, key_of
from alpa_cfp.spmd.module.hlo_module import HloModule


def recorded_devices(
    database: ProfileDatabase, mesh_shape: Sequence[int], device_kind: str | None = None
) -> DeviceDescription:
    """The devices on which the profiles of a mesh were made.

    Args:
        database: The profiles.
        mesh_shape: The logical mesh's.
        device_kind: Selects the devices where there are several kinds; None for any.

    Raises:
        ReplayError: the database has no profiles of such a mesh on such devices, or has them on several ones.
    """
    recorded = sorted({(key.mesh_shape, DeviceDescription.of_key(key)) for key in database.keys()})  # noqa: SIM118
    found = [
        devices
        for shape, devices in recorded
        if shape == tuple(mesh_shape) and device_kind in (None, devices.device_kind)
    ]
    if not found:
        named = {} if device_kind is None else {"device_kind": device_kind}
        raise ReplayError.no_profiles(mesh_shape, named, [(shape, str(devices)) for shape, devices in recorded])
    if len(found) > 1:
        values_of = {
            each.name: {getattr(devices, each.name) for devices in found} for each in fields(DeviceDescription)
        }
        raise ReplayError.several_devices(
            mesh_shape,
            [str(devices) for devices in found],
            [name for name, values in values_of.items() if len(values) > 1],
            kind_tells=len(values_of["device_kind"]) == len(found),
        )
    return found[0]


def replay(modules: Sequence[HloModule], devices: DeviceDescription, database: ProfileDatabase) -> list[Profile]:
    """The recorded profile of each of `modules` on `devices`, with any number of samples.

    Args:
        modules: Modules with their partitioned programs.
        devices: The devices that they were profiled on; see `recorded_devices`.
        database: The profiles.

    Raises:
        ReplayError: the database lacks profiles.
        ValueError: a module is not partitioned.
    """
    keys = [key_of(module, devices)[0] for module in modules]
    profiles = {key: database.get(key) for key in keys}
    missing = {key: module.name for key, module in zip(keys, modules, strict=True) if profiles[key] is None}
    if missing:
        names = [f"{name} ({key.program[:12]})" for key, name in missing.items()]
        raise ReplayError.missing(names, len(profiles), str(devices))
    return [profile for key in keys if (profile := profiles[key]) is not None]
