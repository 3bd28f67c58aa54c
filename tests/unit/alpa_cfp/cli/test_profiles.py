"""`alpa-cfp profiles`: each command on databases that are empty, full, missing, damaged or something else."""

import hashlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from alpa_cfp.cli.main import main
from alpa_cfp.database import Profile, ProfileDatabase, ProfileKey, encoding, schema
from unit.alpa_cfp.database.profiles import failed, key_of, make_database, measured, program_of

pytestmark = pytest.mark.slow

OLD, NEW = "2025-01-01T00:00:00Z", "2026-06-01T00:00:00Z"


class Outcome:
    """What a command gave."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def rows(self) -> list[list[str]]:
        """The words of each line of a table, without its head."""
        return [line.split() for line in self.out.splitlines()[1:]]


Run = Callable[..., Outcome]


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `alpa-cfp profiles` in an empty folder, on its `profiles.sqlite`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ALPA_CFP_DATABASE", str(tmp_path / "profiles.sqlite"))

    def run(*arguments: str) -> Outcome:
        try:
            code = main(["profiles", *arguments])
        except SystemExit as ended:  # argparse's
            code = ended.code
        return Outcome(code, *capsys.readouterr())

    return run


def fill(path: str, *content: tuple[ProfileKey, Profile]) -> None:
    with ProfileDatabase.open(path) as database:
        for key, profile in content:
            database.put(key, profile)


def content_of(path: str) -> list[tuple[ProfileKey, Profile]]:
    with ProfileDatabase.open(path, readonly=True) as database:
        return [(key, session) for key in database.keys() for session in database.sessions(key)]  # noqa: SIM118


def one_line(outcome: Outcome) -> str:
    """The error of a command that was used wrongly."""
    assert outcome.code == 2, outcome.out
    assert outcome.out == ""
    assert outcome.err.startswith("alpa-cfp profiles: ")
    assert outcome.err.count("\n") == 1
    return outcome.err


def broken_files() -> dict[str, str]:
    """Makes files that are no profile databases, in this folder; gives a part of what is said of each."""
    make_database(Path("sound.sqlite"))
    Path("cut.sqlite").write_bytes(Path("sound.sqlite").read_bytes()[:9000])
    Path("text.sqlite").write_text("this is not a database, and long enough to be looked at")
    with sqlite3.connect("foreign.sqlite") as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")
    connection.close()
    Path("folder.sqlite").mkdir()
    return {
        "missing.sqlite": "there is no ",
        "cut.sqlite": "cannot be read as a profile database",
        "text.sqlite": "file is not a database",
        "foreign.sqlite": "another application",
        "folder.sqlite": "is a directory",
    }


def test_list_counts_the_profiles_of_each_mesh_and_kind_of_device(profiles: Run) -> None:
    gpu = {"mesh_shape": (8,), "device_kind": "H100"}
    fill(
        "profiles.sqlite",
        (key_of(0), measured(0.1, 0.2, created_at=OLD)),
        (key_of(0), measured(0.3, created_at=NEW)),
        (key_of(1), failed()),
        (key_of(2, **gpu), measured(0.1)),
    )
    outcome = profiles("list")
    assert outcome.code == 0
    assert outcome.rows == [
        ["2x4", "cpu", "1x8", "0.10.2", "1", "1", "3", "2026-06-01", "00:00", "--xla_a=1"],
        ["8", "H100", "1x8", "0.10.2", "1", "0", "1", "2026-03-01", "12:00", "--xla_a=1"],
    ]


def test_list_as_json_says_what_the_table_says(profiles: Run) -> None:
    fill("profiles.sqlite", (key_of(0), measured(0.1, 0.2)), (key_of(1), failed()))
    assert json.loads(profiles("list", "--json").out) == [
        {
            "mesh_shape": [2, 4],
            "device_kind": "cpu",
            "hosts": "1x8",
            "jaxlib_version": "0.10.2",
            "xla_flags": "--xla_a=1",
            "measured": 1,
            "failed": 1,
            "samples": 2,
            "newest": "2026-03-01T12:00:00.000000Z",
        }
    ]


def test_list_of_keys_shows_only_those_that_are_asked_for(profiles: Run) -> None:
    keys = [key_of(0), key_of(1, mesh_shape=(8,)), key_of(2, device_kind="H100"), key_of(3, jaxlib_version="0.11.2")]
    fill("profiles.sqlite", *((key, measured()) for key in keys))
    assert len(profiles("list", "--keys").rows) == 4
    for filter_, key in zip(["--mesh=8", "--device-kind=H100", "--jaxlib=0.11.2"], keys[1:], strict=True):
        assert [row[0] for row in profiles("list", "--keys", filter_).rows] == [key.digest[:12]]


def test_list_of_an_empty_database_is_an_empty_table(profiles: Run) -> None:
    fill("profiles.sqlite")
    outcome = profiles("list")
    assert (outcome.code, outcome.out) == (0, "")
    assert "has no profiles" in outcome.err
    assert json.loads(profiles("list", "--json").out) == []


def test_list_does_not_make_or_change_a_file(profiles: Run) -> None:
    one_line(profiles("list"))
    assert os.listdir() == []
    make_database(Path("profiles.sqlite"))
    before = hashlib.sha256(Path("profiles.sqlite").read_bytes()).digest()
    assert profiles("list", "--keys").code == 0
    assert hashlib.sha256(Path("profiles.sqlite").read_bytes()).digest() == before


@pytest.mark.parametrize("place", ["before", "after"])
def test_the_database_may_be_named_before_and_after_the_command(profiles: Run, place: str) -> None:
    fill("other.sqlite", (key_of(0), measured()))
    named = ["--database", "other.sqlite"]
    outcome = profiles(*named, "list") if place == "before" else profiles("list", *named)
    assert len(outcome.rows) == 1


def test_show_tells_all_of_the_one_key_that_begins_so(profiles: Run) -> None:
    fill(
        "profiles.sqlite",
        (key_of(0), measured(0.001, 0.003, created_at=OLD)),
        (key_of(0), failed(created_at=NEW)),
        (key_of(1), measured()),
    )
    shown = profiles("show", key_of(0).digest[:10].upper()).out
    for part in (
        key_of(0).digest, "2x4 of cpu", "jaxlib 0.10.2", "--xla_a=1", "typical 1.00 ms", "longest 3.00 ms", "1 3\n",
        "5.63 kB a device", "2 all-reduce of 4.1 kB over 8 devices", "2025-01-01 00:00, 2 samples", "host-0",
        "2026-06-01 00:00, failed: out of memory",
    ):  # fmt: skip
        assert part in shown


def test_show_of_a_failed_profile_says_why(profiles: Run) -> None:
    fill("profiles.sqlite", (key_of(0), failed()))
    shown = profiles("show", key_of(0).digest).out
    assert "failed: out of memory" in shown
    assert "needs 90 GiB" in shown


def test_show_as_json_holds_every_session_as_it_was_put(profiles: Run) -> None:
    sessions = [measured(0.1, created_at=OLD), measured(0.2, created_at=NEW)]
    fill("profiles.sqlite", *((key_of(0), session) for session in sessions))
    shown = json.loads(profiles("show", key_of(0).digest, "--json").out)
    assert shown["key"] == key_of(0).digest
    assert [encoding.profile_from(session) for session in shown["sessions"]] == sessions
    assert shown["profile"]["samples_s"] == [0.1, 0.2]


def test_show_prints_the_program_where_it_was_kept(profiles: Run) -> None:
    make_database(Path("profiles.sqlite"), 1)
    assert profiles("show", key_of(0).digest, "--program").out == program_of(0)
    fill("without.sqlite", (key_of(0), measured()))
    assert "was not kept" in one_line(profiles("--database=without.sqlite", "show", key_of(0).digest, "--program"))


def test_show_of_an_unknown_or_ambiguous_key_is_an_error(profiles: Run) -> None:
    content = make_database(Path("profiles.sqlite"), 20)  # more keys than hexadecimal digits: two begin alike
    first = [key.digest[0] for key in content]
    twice = next(digit for digit in first if first.count(digit) > 1)
    told = one_line(profiles("show", twice))
    assert f"{first.count(twice)} keys begin with" in told
    assert "Give more digits" in told
    assert "no key begins with 'xyz'" in one_line(profiles("show", "xyz"))
    assert "no key begins with ''" in one_line(profiles("show", ""))


def test_what_is_exported_is_imported_once(profiles: Run) -> None:
    make_database(Path("profiles.sqlite"), 3)
    assert profiles("export", "all.json").out == "3 sessions written to all.json\n"
    assert "3 new sessions" in profiles("--database=copy.sqlite", "import", "all.json").out
    assert "0 new sessions" in profiles("--database=copy.sqlite", "import", "all.json").out
    assert content_of("copy.sqlite") == content_of("profiles.sqlite")


def test_export_takes_only_what_is_asked_for(profiles: Run) -> None:
    fill("profiles.sqlite", (key_of(0), measured()), (key_of(1, device_kind="H100"), measured()))
    assert profiles("export", "gpu.json", "--device-kind", "H100").out.startswith("1 session ")


def test_an_export_replaces_an_earlier_one_and_nothing_else(profiles: Run) -> None:
    make_database(Path("profiles.sqlite"), 1)
    Path("notes.txt").write_text("mine")
    assert [profiles("export", "all.json").code for _ in range(2)] == [0, 0]
    for other in ("notes.txt", "profiles.sqlite", "."):
        one_line(profiles("export", other))
    assert Path("notes.txt").read_text() == "mine"
    assert len(content_of("profiles.sqlite")) == 1
    assert "cannot be written" in one_line(profiles("export", "nowhere/all.json"))


def test_merge_takes_the_profiles_of_other_databases(profiles: Run) -> None:
    fill("one.sqlite", (key_of(0), measured()))
    fill("two.sqlite", (key_of(0), measured()), (key_of(1), failed()))
    outcome = profiles("merge", "one.sqlite", "two.sqlite")
    assert [line.split(":")[1].split()[0] for line in outcome.out.splitlines()] == ["1", "1"]
    assert content_of("profiles.sqlite") == content_of("two.sqlite")


@pytest.mark.parametrize("command", ["import", "merge"])
def test_a_file_of_the_other_kind_names_the_command_that_takes_it(profiles: Run, command: str) -> None:
    make_database(Path("profiles.sqlite"), 1)
    profiles("export", "all.json")
    file, other = {"import": ("profiles.sqlite", "merge"), "merge": ("all.json", "import")}[command]
    kind = {"import": "is a database, not an export", "merge": "is no database; if it is an export"}[command]
    assert f"{file} {kind}: alpa-cfp profiles {other} {file}" in one_line(profiles(command, file))


def test_one_wrong_file_among_others_changes_nothing(profiles: Run) -> None:
    make_database(Path("full.sqlite"), 1)
    profiles("--database=full.sqlite", "export", "all.json")
    Path("wrong.json").write_text("[]")
    one_line(profiles("import", "all.json", "wrong.json"))
    one_line(profiles("import", "all.json", "missing.json"))
    one_line(profiles("merge", "full.sqlite", "missing.sqlite"))
    assert not Path("profiles.sqlite").exists()


def test_prune_only_says_what_it_would_remove_until_it_is_sure(profiles: Run) -> None:
    fill("profiles.sqlite", (key_of(0), measured(created_at=OLD)), (key_of(1), measured(created_at=NEW)))
    for dry in ([], ["--dry-run"]):
        outcome = profiles("prune", "--before", "2026-01-01", *dry)
        assert outcome.code == 0
        assert "1 session would be removed" in outcome.out
        assert len(content_of("profiles.sqlite")) == 2
    assert profiles("prune", "--before", "2026-01-01", "--yes").out.startswith("1 session removed")
    assert content_of("profiles.sqlite") == [(key_of(1), measured(created_at=NEW))]


@pytest.mark.parametrize(
    ("conditions", "goes"),
    [
        (["--failed"], {2}),
        (["--older-than", "1d"], {0, 1, 2, 3}),
        (["--before", "2025-06-01T12:00"], {0}),
        (["--before", "2025-01-01T01:00+02:00"], set()),
        (["--jaxlib", "0.9"], {1}),
        (["--device-kind", "H100"], {3}),
        (["--failed", "--device-kind", "H100"], set()),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_prune_removes_what_meets_all_conditions_and_says_so_before(
    profiles: Run, conditions: list[str], goes: set[int]
) -> None:
    content = [
        (key_of(0), measured(created_at=OLD)),
        (key_of(1, jaxlib_version="0.9"), measured(created_at=NEW)),
        (key_of(2), failed()),
        (key_of(3, device_kind="H100"), measured()),
    ]
    fill("profiles.sqlite", *content)
    said = profiles("prune", *conditions)
    assert ("nothing to prune" if not goes else f"\n{len(goes)} session") in said.out
    profiles("prune", *conditions, "--yes")
    stays = [item for number, item in enumerate(content) if number not in goes]
    assert sorted(content_of("profiles.sqlite"), key=repr) == sorted(stays, key=repr)


def test_prune_without_a_condition_is_an_error(profiles: Run) -> None:
    make_database(Path("profiles.sqlite"), 1)
    assert "say what to prune" in one_line(profiles("prune", "--yes"))
    assert len(content_of("profiles.sqlite")) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("list --mesh 2by4", "argument --mesh: '2by4' is no mesh: whole numbers with x between them, as 2x4"),
        ("prune --older-than 3m", "argument --older-than: '3m' is no age: a whole number and h, d or w"),
        ("prune --older-than soon", "argument --older-than: 'soon' is no age"),
        ("prune --older-than 9999999w", "argument --older-than: '9999999w' is longer ago than calendars go"),
        ("prune --before May", "argument --before: 'May' is no time: 2026-03-01, or 2026-03-01T12:00 (UTC)"),
        ("prune --failed --yes --dry-run", "argument --dry-run: not allowed with argument --yes"),
        ("prune --failed --yes --database=", "argument --database: the name is empty; leave --database out to mean"),
        ("lsit", "argument COMMAND: invalid choice: 'lsit'"),
        ("", "the following arguments are required: COMMAND"),
    ],
)
def test_profiles_that_cannot_be_are_refused(profiles: Run, wrong: str, message: str) -> None:
    make_database(Path("profiles.sqlite"), 1)
    outcome = profiles(*wrong.split())
    assert (outcome.code, outcome.out) == (2, "")
    assert f"error: {message}" in outcome.err.splitlines()[-1]
    assert len(content_of("profiles.sqlite")) == 1


def test_a_file_that_is_not_there_or_no_file_is_named(profiles: Run) -> None:
    os.mkfifo("pipe")  # opening it would wait for a writer
    said = one_line(profiles("list"))
    assert f"there is no profile database at {Path.cwd()}/profiles.sqlite: CFP makes it when it first measures" in said
    assert "there is no file absent.json" in one_line(profiles("import", "absent.json"))
    assert "pipe is no ordinary file, which a database or an export is" in one_line(profiles("merge", "pipe"))
    assert "pipe is no ordinary file" in one_line(profiles("--database", "pipe", "list"))


@pytest.mark.parametrize(
    "command",
    [
        ["list"],
        ["show", "a"],
        ["export", "x.json"],
        ["import", "all.json"],
        ["merge", "sound.sqlite"],
        ["prune", "--failed", "--yes"],
    ],
    ids=lambda command: command[0],
)
def test_a_file_that_is_no_database_is_an_error_and_stays_as_it_is(profiles: Run, command: list[str]) -> None:
    broken = broken_files()
    profiles("--database=sound.sqlite", "export", "all.json")
    makes = command[0] in ("import", "merge")
    for name, reason in broken.items():
        file = Path(name)
        before = file.read_bytes() if file.is_file() else None
        if before is None and makes:
            continue  # a missing one is made; folders are below
        assert reason in one_line(profiles("--database", name, *command))
        assert (file.read_bytes() if file.is_file() else None) == before
    assert not list(Path().glob("*damaged-*"))


@pytest.mark.parametrize("command", [["import", "all.json"], ["merge", "sound.sqlite"]], ids=lambda command: command[0])
def test_a_place_where_no_file_can_be_made_is_an_error(profiles: Run, command: list[str]) -> None:
    broken_files()
    profiles("--database=sound.sqlite", "export", "all.json")
    for place in ("folder.sqlite", "text.sqlite/profiles.sqlite"):
        assert "cannot be opened" in one_line(profiles("--database", place, *command))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_is_read_only_cannot_be_changed(profiles: Run) -> None:
    make_database(Path("profiles.sqlite"), 1)
    make_database(Path("other.sqlite"), 2)
    Path("profiles.sqlite").chmod(0o444)
    assert "readonly" in one_line(profiles("merge", "other.sqlite"))
    assert len(profiles("list", "--keys").rows) == 1


@pytest.mark.parametrize("command", [["import", "all.json"], ["merge", "full.sqlite"]], ids=lambda command: command[0])
def test_ctrl_c_leaves_the_database_as_it_was(
    profiles: Run, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_database(Path("full.sqlite"), 8)
    make_database(Path("profiles.sqlite"), 1)
    profiles("--database=full.sqlite", "export", "all.json")
    before, written = content_of("profiles.sqlite"), []

    def interrupted(profile: Profile) -> str:
        if len(written) == 5:
            raise KeyboardInterrupt
        written.append(profile)
        return encoding.profile_text(profile)

    with monkeypatch.context() as patch:
        patch.setattr(schema, "profile_text", interrupted)
        assert profiles(*command).code == 130
    assert len(written) == 5
    assert content_of("profiles.sqlite") == before
    assert profiles(*command).code == 0
    assert content_of("profiles.sqlite") == content_of("full.sqlite")


def test_a_reader_that_stops_reading_is_no_error(profiles: Run) -> None:
    make_database(Path("profiles.sqlite"), 8)
    code = (
        "import os, sys\nfrom alpa_cfp.cli.main import main\n"
        "reading, writing = os.pipe()\nos.dup2(writing, 1)\nos.close(reading)\nos.close(writing)\n"
        "sys.exit(main(['profiles', 'list', '--keys']))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
