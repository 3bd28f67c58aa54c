"""Findings about the profile database: its path, whether it can be read and written, and its content.

Invariant: the file is not changed, and none is made.
"""

import os
from collections import Counter
from pathlib import Path
from typing import Any

from alpa_cfp.database import (
    DatabaseDamagedError,
    ProfileDatabase,
    ProfileDatabaseError,
    ProfileKey,
    database_path,
)
from alpa_cfp.doctor.finding import Finding
from alpa_cfp.file_kinds import file_kind
from alpa_cfp.quantities import plural, shape, size

_CHECK = "profiles"
_OTHER_FILE = "name another file with ALPA_CFP_DATABASE"


def database(given: str | None, jaxlib_version: str | None) -> Finding:
    """Checks the database at a path, or the user's default; profiles of another jaxlib are not used."""
    path = database_path(given)
    details: dict[str, Any] = {"path": str(path)}
    try:
        kind = file_kind(path)
    except OSError as error:
        fix = f"make {path.parent} readable, or {_OTHER_FILE}"
        return Finding(_CHECK, "problem", f"{path} cannot be looked at: {error.strerror}", fix, details)
    if kind in ("directory", "other"):
        found = f"{path} is {'a directory' if kind == 'directory' else 'no ordinary file'}, and no database"
        return Finding(_CHECK, "problem", found, _OTHER_FILE, details)
    if kind == "absent":
        where = _nearest(path.parent)
        if not where.is_dir() or not os.access(where, os.W_OK):
            found = f"{path} is not there and cannot be made: no permission to write in {where}"
            return Finding(_CHECK, "problem", found, f"make {where} writable, or {_OTHER_FILE}", details)
        return Finding(_CHECK, "ok", f"none yet; measuring will make {path}", details=details)
    try:
        if kind == "empty" and os.access(path, os.W_OK):
            return Finding(_CHECK, "ok", f"{path} is an empty file; measuring will fill it", details=details)
        with ProfileDatabase.open(path, readonly=True) as profiles:
            size_bytes = path.stat().st_size
            every = list(profiles.items())
    except DatabaseDamagedError as error:
        fix = (
            f"if it is not a profile database: {_OTHER_FILE}. Otherwise nothing: the next measurement sets it aside, "
            "unchanged, and begins anew"
        )
        return Finding(_CHECK, "problem", f"{path} cannot be read: {_reason(error, path)}", fix, details)
    except (ProfileDatabaseError, OSError) as error:
        fix = f"look at the permissions of the file and its folder, or {_OTHER_FILE}"
        return Finding(_CHECK, "problem", f"{path} cannot be opened: {_reason(error, path)}", fix, details)
    meshes = Counter(_mesh(key) for key, _ in every)
    other = sorted({key.jaxlib_version for key, _ in every if key.jaxlib_version != jaxlib_version})
    failed = sum(profile.status == "failed" for _, profile in every)
    details |= {
        "size_bytes": size_bytes,
        "profiles": len(every),
        "failed": failed,
        "meshes": dict(sorted(meshes.items())),
    }
    of = ", ".join(f"{count} of {mesh}" for mesh, count in sorted(meshes.items()))
    found = f"{path}: {size(size_bytes)}, {plural(len(every), 'profile')}{f' ({failed} failed)' if failed else ''}"
    found = f"{found}: {of}" if of else found
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        fix = f"make the file and its folder writable, or {_OTHER_FILE}"
        return Finding(_CHECK, "problem", f"{found}. It cannot be written: what is measured is lost", fix, details)
    if other and jaxlib_version is not None:
        fix = f"alpa-cfp profiles prune --jaxlib {other[0]} removes such"
        return Finding(
            _CHECK, "note", f"{found}. Those of another jaxlib than {jaxlib_version} are not used", fix, details
        )
    return Finding(_CHECK, "ok", found, details=details)


def _mesh(key: ProfileKey) -> str:
    return f"{shape(key.mesh_shape)} {key.device_kind} with jaxlib {key.jaxlib_version}"


def _nearest(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    return next((each for each in (folder, *folder.parents) if each.exists()), folder)


def _reason(error: Exception, path: Path) -> str:
    """The reason in a database error, without its advice, which is about planning."""
    text = " ".join(str(error).split())
    for beginning in (
        f"{path} cannot be read as a profile database: ",
        f"the profile database {path} cannot be opened: ",
    ):
        text = text.removeprefix(beginning)
    return text.split(". It was left as it is")[0].split(". Look at the permissions")[0]
