"""`alpa-cfp profiles`: shows the profile database, and moves profiles between databases.

Invariants: commands that only show open the file read-only; changes are atomic; nothing is removed without --yes; a
file that is no profile database is not changed.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypedDict

from alpa_cfp import quantities
from alpa_cfp.cli.process import UserError, reader_may_leave
from alpa_cfp.database import (
    ExchangeFormatError,
    ProfileDatabase,
    ProfileKey,
    database_path,
)
from alpa_cfp.database.encoding import key_fields, profile_fields
from alpa_cfp.database.exchange import read_export
from alpa_cfp.file_kinds import file_kind
from alpa_cfp.report import profile_words as words

EPILOG = """\
The database is a file. It is --database FILE, else $ALPA_CFP_DATABASE, else alpa_cfp/profiles.sqlite in the user's
cache directory (`alpa-cfp doctor` says where that is). CFP fills it when it measures.

examples:
  alpa-cfp profiles list                          what there is, by mesh and kind of device
  alpa-cfp profiles list --keys --mesh 2x4        one line for each profile
  alpa-cfp profiles show 3fa94b                   all about the profile whose key begins so
  alpa-cfp profiles export profiles.json          everything, as JSON
  alpa-cfp profiles import profiles.json          add what another machine exported
  alpa-cfp profiles merge other.sqlite            add what another database holds
  alpa-cfp profiles prune --older-than 90d        say what would be removed
  alpa-cfp profiles prune --older-than 90d --yes  remove it

`alpa-cfp profiles COMMAND --help` says more.
"""
_PRUNE_EPILOG = """\
Without --yes it only says what it would remove. Conditions add up: what meets all of them goes. A profile that was
measured in several sessions loses only those that meet them. The file keeps its size; the room is used again.

examples:
  alpa-cfp profiles prune --older-than 90d
  alpa-cfp profiles prune --before 2026-03-01 --failed
  alpa-cfp profiles prune --jaxlib 0.10.2 --yes
"""
_AGES = {"h": "hours", "d": "days", "w": "weeks"}
_NAMED_AT_MOST = 4


class _Filters(TypedDict, total=False):
    """Filters of profiles, as arguments of the database's methods."""

    device_kind: str
    jaxlib_version: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `alpa-cfp profiles`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    _add_database(parser, None)
    commands = parser.add_subparsers(dest="action", metavar="COMMAND", required=True)

    listing = _command(commands, "list", "what the database holds", _list)
    listing.add_argument("--keys", action="store_true", help="a line for each profile, with the key that `show` takes")
    listing.add_argument("--mesh", metavar="SHAPE", type=_shape, help="only profiles of this mesh, as 2x4")
    _add_filters(listing)
    listing.add_argument("--json", action="store_true", help="print a JSON list")

    showing = _command(commands, "show", "all about one profile: times, memory, collectives, sessions", _show)
    showing.add_argument("key", metavar="KEY", help="the first digits of a key, as `list --keys` shows them")
    showing.add_argument("--json", action="store_true", help="print a JSON object")
    showing.add_argument("--program", action="store_true", help="print the program's text, and nothing else")

    exporting = _command(commands, "export", "write profiles to a JSON file", _export)
    exporting.add_argument("file", metavar="FILE", type=Path, help="an earlier export of that name is replaced")
    _add_filters(exporting)

    importing = _command(commands, "import", "add the profiles of JSON files; a file's all or none", _import)
    importing.add_argument("files", metavar="FILE", type=Path, nargs="+", help="what `export` wrote")

    merging = _command(commands, "merge", "add the profiles of other databases; a file's all or none", _merge)
    merging.add_argument("files", metavar="OTHER.sqlite", type=Path, nargs="+", help="it is only read")

    pruning = _command(commands, "prune", "remove profiles: says which, and removes them with --yes", _prune)
    pruning.formatter_class = argparse.RawDescriptionHelpFormatter
    pruning.epilog = _PRUNE_EPILOG
    age = pruning.add_mutually_exclusive_group()
    age.add_argument(
        "--older-than", metavar="AGE", type=_age, dest="before", help="only what was measured longer ago: 12h, 90d, 8w"
    )
    age.add_argument(
        "--before",
        metavar="TIME",
        type=_time,
        help="only what was measured before: 2026-03-01, or 2026-03-01T12:00 (UTC)",
    )
    _add_filters(pruning)
    pruning.add_argument("--failed", action="store_true", help="only programs that could not be measured")
    sure = pruning.add_mutually_exclusive_group()
    sure.add_argument("--yes", action="store_true", help="remove them")
    sure.add_argument("--dry-run", action="store_true", help="only say what would be removed (as without --yes)")


def run(arguments: argparse.Namespace) -> int:
    """Runs `alpa-cfp profiles`."""
    with reader_may_leave():
        arguments.act(arguments)
    return 0


def _list(arguments: argparse.Namespace) -> None:
    path = database_path(arguments.database)
    with _opened(path) as database:
        chosen = _chosen(arguments)
        found = [
            (key, profile) for key, profile in database.items(**chosen) if arguments.mesh in (None, key.mesh_shape)
        ]
    if arguments.json and arguments.keys:
        rows = [{"key": key.digest, **key_fields(key), **profile_fields(profile)} for key, profile in found]
        print(json.dumps(rows, indent=1))
    elif arguments.json:
        print(json.dumps(words.group_rows(found), indent=1))
    elif found:
        print("\n".join(words.key_table(found) if arguments.keys else words.group_table(found)))
    else:
        such = " such" if chosen or arguments.mesh else ""
        print(f"alpa-cfp profiles: {path} has no{such} profiles", file=sys.stderr)


def _show(arguments: argparse.Namespace) -> None:
    with _opened(database_path(arguments.database)) as database:
        key = _key(database, arguments.key)
        sessions, text = database.sessions(key), database.program_text(key)
        profile = database.get(key)
    assert profile is not None
    if arguments.program:
        if text is None:
            raise UserError(f"the text of the program of {key.digest[: words.SHOWN_DIGITS]} was not kept")
        print(text, end="" if text.endswith("\n") else "\n")
    elif arguments.json:
        content = {
            "key": key.digest,
            **key_fields(key),
            "profile": profile_fields(profile),
            "sessions": [profile_fields(session) for session in sessions],
        }
        print(json.dumps(content, indent=1))
    else:
        print("\n".join(words.profile_lines(key, profile, sessions, text is not None)))


def _export(arguments: argparse.Namespace) -> None:
    file: Path = arguments.file
    with _opened(database_path(arguments.database)) as database:
        _check_may_replace(file)
        try:
            count = database.export_json(file, **_chosen(arguments))
        except OSError as error:
            raise UserError(f"{file} cannot be written: {error.strerror}") from error
    print(f"{quantities.plural(count, 'session')} written to {file}")


def _import(arguments: argparse.Namespace) -> None:
    for file in arguments.files:  # before anything is changed or made
        _check_is_file(file)
        if _begins_with(file, b"SQLite format 3"):
            raise UserError(f"{file} is a database, not an export: alpa-cfp profiles merge {file}")
        read_export(file)
    path = database_path(arguments.database)
    with ProfileDatabase.open_to_change(path) as database:
        for file in arguments.files:
            print(f"{file}: {quantities.plural(database.import_json(file), 'new session')} added to {path}")


def _merge(arguments: argparse.Namespace) -> None:
    for file in arguments.files:
        _check_is_file(file)
        if _begins_with(file, b"{"):
            raise UserError(f"{file} is no database; if it is an export: alpa-cfp profiles import {file}")
        ProfileDatabase.open(file, readonly=True).close()
    path = database_path(arguments.database)
    with ProfileDatabase.open_to_change(path) as database:
        for file in arguments.files:
            print(f"{file}: {quantities.plural(database.merge(file), 'new session')} added to {path}")


def _prune(arguments: argparse.Namespace) -> None:
    chosen = _chosen(arguments)
    if arguments.before is None and not chosen and not arguments.failed:
        raise UserError("say what to prune: --older-than, --before, --jaxlib, --device-kind or --failed")
    path = database_path(arguments.database)
    with _opened(path) as database:
        doomed = [
            (key, session)
            for key in database.keys(**chosen)
            for session in database.sessions(key)
            if (arguments.before is None or session.created_at < arguments.before)
            and (not arguments.failed or session.status == "failed")
        ]
    if not doomed:
        print(f"nothing to prune: no profile of {path} meets the conditions")
        return
    if not arguments.yes:
        print("\n".join(words.group_table(doomed)))
        print(f"\n{quantities.plural(len(doomed), 'session')} would be removed; add --yes to remove them")
        return
    with ProfileDatabase.open_to_change(path) as database:
        removed = database.prune(before=arguments.before, status="failed" if arguments.failed else None, **chosen)
    print(f"{quantities.plural(removed, 'session')} removed from {path}")


def _opened(path: Path) -> ProfileDatabase:
    """Opens the database read-only; it must exist."""
    if not path.exists():
        raise UserError(
            f"there is no profile database at {path}: CFP makes it when it first measures. Name another one with "
            "--database or ALPA_CFP_DATABASE"
        )
    _check_is_file(path)
    return ProfileDatabase.open(path, readonly=True)


def _key(database: ProfileDatabase, beginning: str) -> ProfileKey:
    """The only key with this beginning."""
    wanted = beginning.lower()
    every = database.keys()
    found = [key for key in every if key.digest.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    if not found or not wanted:
        raise UserError(f"no key begins with {beginning!r}; `alpa-cfp profiles list --keys` shows them")
    shown = ", ".join(key.digest[: max(words.SHOWN_DIGITS, len(wanted) + 2)] for key in found[:_NAMED_AT_MOST])
    more = ", ..." if len(found) > _NAMED_AT_MOST else ""
    raise UserError(f"{len(found)} keys begin with {beginning!r}: {shown}{more}. Give more digits")


def _check_is_file(file: Path) -> None:
    kind = file_kind(file)
    if kind == "absent":
        raise UserError(f"there is no file {file}")
    if kind == "directory":
        raise UserError(f"{file} is a directory")
    if kind == "other":
        raise UserError(f"{file} is no ordinary file, which a database or an export is")


def _check_may_replace(file: Path) -> None:
    """Checks that the file is absent, empty or an earlier export, and not, for instance, the database itself."""
    if not file.exists() or (file.is_file() and file.stat().st_size == 0):
        return
    _check_is_file(file)
    try:
        read_export(file)
    except ExchangeFormatError:
        raise UserError(f"{file} is there and is no export of profiles: name another file, or remove it") from None


def _begins_with(file: Path, beginning: bytes) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(beginning)) == beginning


def _chosen(arguments: argparse.Namespace) -> _Filters:
    """The filters on the command line."""
    filters: _Filters = {}
    if arguments.device_kind is not None:
        filters["device_kind"] = arguments.device_kind
    if arguments.jaxlib is not None:
        filters["jaxlib_version"] = arguments.jaxlib
    return filters


def _command(commands: Any, name: str, help: str, act: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
    parser.set_defaults(act=act)
    # The option is allowed before and after the command; the latter wins.
    _add_database(parser, argparse.SUPPRESS)
    return parser


def _add_database(parser: argparse.ArgumentParser, default: str | None) -> None:
    words = "the database (default: $ALPA_CFP_DATABASE, or the user's)"
    parser.add_argument("--database", metavar="FILE", type=_name, default=default, help=words)


def _add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device-kind", metavar="KIND", help="only profiles of this kind of device, as `list` shows it"
    )
    parser.add_argument("--jaxlib", metavar="VERSION", help="only profiles of this version of jaxlib")


def _name(text: str) -> str:
    if not text:  # mostly of an unset variable; it must not mean the usual database
        raise argparse.ArgumentTypeError("the name is empty; leave --database out to mean the usual database")
    return text


def _shape(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(x\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no mesh: whole numbers with x between them, as 2x4")
    return tuple(int(size) for size in text.split("x"))


def _age(text: str) -> str:
    matched = re.fullmatch(r"(\d+)([hdw])", text)
    if matched is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no age: a whole number and h, d or w (hours, days, weeks), as 90d"
        )
    try:
        moment = datetime.now(UTC) - timedelta(**{_AGES[matched[2]]: int(matched[1])})
    except OverflowError:
        raise argparse.ArgumentTypeError(f"{text!r} is longer ago than calendars go") from None
    return _spelled(moment)


def _time(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: 2026-03-01, or 2026-03-01T12:00 (UTC)") from None
    return _spelled(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _spelled(moment: datetime) -> str:
    """A time in the format of profiles, in which texts compare like times."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
