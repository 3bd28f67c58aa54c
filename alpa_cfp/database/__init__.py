"""The profile database: measured profiles of programs, by a key of the program and its mesh.

    with ProfileDatabase.open() as database:
        key = ProfileKey.of(text, mesh_shape=(2, 4), hosts="1x8", device_kind="cpu", jaxlib_version="0.10.2")
        database.put(key, profile, program_text=text)

Everything public is named here. Nothing here imports jax, so profiles can be studied on any machine.
"""

from alpa_cfp.database.database import ProfileDatabase
from alpa_cfp.database.errors import (
    DatabaseClosedError,
    DatabaseDamagedError,
    DatabaseMissingError,
    DatabaseReadonlyError,
    DatabaseUnavailableError,
    DatabaseWriteError,
    ExchangeFormatError,
    ProfileDatabaseError,
    ProfileValueError,
    PruneError,
)
from alpa_cfp.database.opening import ENVIRONMENT_VARIABLE, database_path
from alpa_cfp.database.timelines import StepTimeline
from alpa_cfp.database.values import Collective, Failure, Profile, ProfileKey, Status, combined, utc_now

__all__ = [
    "ENVIRONMENT_VARIABLE",
    "Collective",
    "DatabaseClosedError",
    "DatabaseDamagedError",
    "DatabaseMissingError",
    "DatabaseReadonlyError",
    "DatabaseUnavailableError",
    "DatabaseWriteError",
    "ExchangeFormatError",
    "Failure",
    "Profile",
    "ProfileDatabase",
    "ProfileDatabaseError",
    "ProfileKey",
    "ProfileValueError",
    "PruneError",
    "Status",
    "StepTimeline",
    "combined",
    "database_path",
    "utc_now",
]
