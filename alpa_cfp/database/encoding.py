"""Keys and profiles as JSON and back, as in the database file and its exports.

Invariant: `profile_from(json.loads(profile_text(p))) == p`, bit for bit, and equal values have equal texts. Values that
are read are checked like a user's, so that a damaged file gives an error and never a wrong profile.
"""

import json
from dataclasses import fields
from typing import Any

from alpa_cfp.database.errors import ProfileValueError
from alpa_cfp.database.values import Collective, Profile, ProfileKey, canonical_json

_COLLECTIVE_FIELDS = tuple(field.name for field in fields(Collective))


def key_fields(key: ProfileKey) -> dict[str, Any]:
    """A key as a JSON object."""
    return {**_plain(key), "mesh_shape": list(key.mesh_shape)}


def key_from(value: Any) -> ProfileKey:
    """The key of a JSON object of `key_fields`; ProfileValueError if there is none."""
    return ProfileKey(**_named("key", value, ProfileKey))


def profile_fields(profile: Profile) -> dict[str, Any]:
    """A profile as a JSON object; collectives are lists of kind, bytes, group size and count.

    `collectives_compiled` is left out where it is false, as in profiles of earlier versions.
    """
    collectives = [[getattr(item, name) for name in _COLLECTIVE_FIELDS] for item in profile.collectives]
    found = {**_plain(profile), "samples_s": list(profile.samples_s), "collectives": collectives}
    if not profile.collectives_compiled:
        del found["collectives_compiled"]
    return found


def profile_from(value: Any) -> Profile:
    """The profile of a JSON object of `profile_fields`; ProfileValueError if there is none."""
    named = _named("profile", {"collectives_compiled": False, **value} if isinstance(value, dict) else value, Profile)
    for name in ("samples_s", "collectives"):
        if not isinstance(named[name], list):
            raise ProfileValueError(name, named[name], "it must be a list")
    for item in named["collectives"]:
        if not isinstance(item, list) or len(item) != len(_COLLECTIVE_FIELDS):
            raise ProfileValueError("a collective", item, f"it must be a list of {', '.join(_COLLECTIVE_FIELDS)}")
    return Profile(**named)


def profile_text(profile: Profile) -> str:
    """The canonical JSON text of a profile, in ASCII."""
    return canonical_json(profile_fields(profile))


def profile_from_text(text: str) -> Profile:
    """The profile of a text of `profile_text`; ProfileValueError if there is none."""
    try:
        return profile_from(json.loads(text))
    except (TypeError, json.JSONDecodeError):
        raise ProfileValueError("profile", text, "it must be a JSON text") from None


def mesh_shape_text(mesh_shape: tuple[int, ...]) -> str:
    """A mesh's shape as `2x4`."""
    return "x".join(map(str, mesh_shape))


def mesh_shape_from(text: str) -> tuple[int, ...]:
    """The shape of a text of `mesh_shape_text`; ProfileValueError if there is none."""
    try:
        return tuple(int(size) for size in text.split("x"))
    except (AttributeError, ValueError):
        raise ProfileValueError("mesh_shape", text, "it must be whole numbers with x between them") from None


def _plain(value: ProfileKey | Profile) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}  # dataclasses.asdict copies deeply, and slowly


def _named(what: str, value: Any, of: type) -> dict[str, Any]:
    names = {field.name for field in fields(of)}
    if not isinstance(value, dict) or set(value) != names:
        raise ProfileValueError(what, value, f"it must have exactly the fields {', '.join(sorted(names))}")
    return dict(value)
