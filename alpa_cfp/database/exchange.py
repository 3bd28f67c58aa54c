"""Export profiles to a JSON file, and import them from one.

Takes sessions and gives a text, and the reverse. Invariant: equal content gives the same bytes, because keys, sessions
and fields are sorted, and floats are written so that they are read back bit for bit.
"""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from alpa_cfp.database.encoding import key_fields, key_from, profile_fields, profile_from
from alpa_cfp.database.errors import ExchangeFormatError, ProfileValueError
from alpa_cfp.database.schema import Record
from alpa_cfp.database.timelines import StepTimeline, timeline_from_text, timeline_text
from alpa_cfp.database.values import Profile, ProfileKey, session_order, text_digest

FORMAT = "alpa_cfp profiles"
FORMAT_VERSION = 1


def export_text(
    sessions: Mapping[ProfileKey, Sequence[Profile]],
    programs: Mapping[str, str],
    timelines: Mapping[ProfileKey, StepTimeline] = MappingProxyType({}),
) -> str:
    """The JSON text of sessions and timelines by key, and of the programs' texts by their digests.

    Timelines are texts in it, by the digests of their keys; without any the text is that of earlier versions.
    """
    profiles = [
        {
            "key": key_fields(key),
            "sessions": [profile_fields(item) for item in sorted(sessions[key], key=session_order)],
        }
        for key in sorted(sessions)
    ]
    content = {"format": FORMAT, "version": FORMAT_VERSION, "programs": dict(programs), "profiles": profiles}
    if timelines:
        content["timelines"] = {key.digest: timeline_text(timeline) for key, timeline in timelines.items()}
    return json.dumps(content, sort_keys=True, ensure_ascii=True, allow_nan=False, indent=1) + "\n"


def write_export(path: Path, text: str) -> None:
    """Write a file as a whole or not at all; OSError if it cannot be written."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
        Path(name).chmod(0o666 & ~_umask())  # mkstemp's files are for their owner only
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_export(path: Path) -> list[Record]:
    """The sessions of an export.

    Raises:
        ExchangeFormatError: it is no export, is from a newer version, or has an invalid value.
        OSError: it cannot be read.
    """
    try:
        content = json.loads(path.read_bytes())
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ExchangeFormatError(path, f"it is not JSON ({error})") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ExchangeFormatError(path, f"it does not say {FORMAT!r} as its format")
    if content.get("version") != FORMAT_VERSION:
        raise ExchangeFormatError(path, f"its version is {content.get('version')!r}, not {FORMAT_VERSION}")
    programs, profiles = content.get("programs"), content.get("profiles")
    if not isinstance(programs, dict) or not isinstance(profiles, list):
        raise ExchangeFormatError(path, "it lacks the object of programs or the list of profiles")
    timelines = content.get("timelines", {})
    if not isinstance(timelines, dict):
        raise ExchangeFormatError(path, "its timelines are no object")
    try:
        for digest, text in programs.items():
            if not isinstance(text, str) or text_digest(text) != digest:
                raise ProfileValueError(f"the text of program {digest}", text, "it must have that digest")
        known = {key: timeline_from_text(text) for key, text in timelines.items()}
        return [record for item in profiles for record in _records(item, programs, known)]
    except (ProfileValueError, TypeError) as error:
        raise ExchangeFormatError(path, str(error)) from error


def _records(item: Any, programs: Mapping[str, str], timelines: Mapping[str, StepTimeline]) -> list[Record]:
    if not isinstance(item, dict) or set(item) != {"key", "sessions"} or not isinstance(item["sessions"], list):
        raise ProfileValueError("an item of profiles", item, "it must have a key and a list of sessions")
    key = key_from(item["key"])
    text, timeline = programs.get(key.program), timelines.get(key.digest)
    return [Record(key, profile_from(session), text, timeline) for session in item["sessions"]]


def _umask() -> int:
    # The only way to read it is to set it.
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
