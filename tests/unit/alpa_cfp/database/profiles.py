"""Keys, profiles and databases that the tests of the profile database share, and hypothesis strategies for them."""

import string
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from alpa_cfp.database import Collective, Profile, ProfileDatabase, ProfileKey

PROGRAM = "module @layer { sdy.mesh @mesh = <['x'=2, 'y'=4]> }\n" * 40
NOON = "2026-03-01T12:00:00Z"


def key_of(number: int = 0, **changes: Any) -> ProfileKey:
    """A key; those of different numbers are of different programs."""
    fields: dict[str, Any] = {
        "mesh_shape": (2, 4),
        "hosts": "1x8",
        "device_kind": "cpu",
        "jaxlib_version": "0.10.2",
        "xla_flags": "--xla_a=1",
    }
    return ProfileKey.of(program_of(number), **{**fields, **changes})


def program_of(number: int = 0) -> str:
    """The program of `key_of(number)`."""
    return f"{PROGRAM}// {number}\n"


def measured(*samples_s: float, **changes: Any) -> Profile:
    """A measured profile of these samples, or of two."""
    fields: dict[str, Any] = {
        "created_at": NOON,
        "samples_s": samples_s or (0.0011, 0.0012),
        "compile_s": 0.25,
        "argument_bytes": 4096,
        "output_bytes": 2048,
        "aliased_bytes": 1024,
        "temporary_bytes": 512,
        "flops": 1e9,
        "bytes_accessed": 2e6,
        "collectives": (Collective("all-reduce", 4096, 8, 2),),
        "machine": "host-0",
    }
    return Profile(status="measured", **{**fields, **changes})


def failed(**changes: Any) -> Profile:
    """A failed profile: the program needs too much memory."""
    fields: dict[str, Any] = {"created_at": NOON, "failure": "out_of_memory", "failure_message": "needs 90 GiB"}
    return Profile(status="failed", **{**fields, **changes})


def make_database(path: Path, count: int = 8) -> dict[ProfileKey, Profile]:
    """Write a database with profiles of keys 0 to `count`, and give what is in it."""
    content = {key_of(number): measured(0.001 + number / 3e4, 0.002) for number in range(count)}
    with ProfileDatabase.open(path) as database:
        for number, (key, profile) in enumerate(content.items()):
            database.put(key, profile, program_text=program_of(number))
    return content


_NAMES = st.text(st.characters(min_codepoint=32, exclude_categories=("Cs",)), max_size=8)
_SIZES = st.integers(0, 2**70)
_FLOATS = st.floats(0, allow_nan=False, allow_infinity=False)
_COLLECTIVES = st.builds(Collective, _NAMES, _SIZES, st.integers(1, 512), st.integers(1, 10**6))
_FLAGS = st.lists(st.text(string.ascii_letters + "=,-_", min_size=1, max_size=6), max_size=3).map(" ".join)
TIMES = st.datetimes(timezones=st.timezones()).map(lambda time: time.isoformat())
_SOMETIMES = {
    "flops": st.none() | _FLOATS,
    "bytes_accessed": st.none() | _FLOATS,
    "collectives": st.lists(_COLLECTIVES, max_size=3),
    "machine": st.text(max_size=8),
    "collectives_compiled": st.booleans(),
}

keys = st.builds(
    ProfileKey.of,
    st.sampled_from([program_of(number) for number in range(4)]),
    mesh_shape=st.lists(st.integers(1, 16), min_size=1, max_size=3),
    hosts=_NAMES,
    device_kind=_NAMES,
    jaxlib_version=_NAMES,
    xla_flags=_FLAGS,
)
times = st.sampled_from([NOON, "2026-03-01T12:00:00.000001Z", "2026-02-28T23:59:59+02:00", "1999-12-31T00:00:00Z"])
measured_profiles = st.builds(
    Profile,
    status=st.just("measured"),
    created_at=times,
    samples_s=st.lists(st.floats(0, exclude_min=True, allow_infinity=False), min_size=1, max_size=6),
    compile_s=_FLOATS,
    argument_bytes=_SIZES,
    output_bytes=_SIZES,
    aliased_bytes=_SIZES,
    temporary_bytes=_SIZES,
    **_SOMETIMES,
)
failed_profiles = st.builds(
    Profile,
    status=st.just("failed"),
    created_at=times,
    compile_s=st.none() | _FLOATS,
    argument_bytes=st.none() | _SIZES,
    failure=st.sampled_from(["out_of_memory", "compile_failed", "timed_out", "crashed"]),
    failure_message=st.text(max_size=12),
    **_SOMETIMES,
)
profiles = measured_profiles | failed_profiles
contents = st.lists(st.tuples(keys, profiles), max_size=5)


def number_of_sessions(database: ProfileDatabase) -> int:
    """The number of sessions of all keys."""
    return sum(len(database.sessions(key)) for key in database.keys())  # noqa: SIM118


def filled(content: list[tuple[ProfileKey, Profile]]) -> ProfileDatabase:
    """A database in memory with this content."""
    database = ProfileDatabase.in_memory()
    for key, profile in content:
        database.put(key, profile)
    return database
