"""Keys and profiles as lines and tables of text.

Invariants: a time is in ms, a size in decimal bytes (kB, MB, GB), a moment in UTC to the minute; a table's first line
names its columns, and no cell is empty.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from alpa_cfp.database import Profile, ProfileKey
from alpa_cfp.quantities import aligned, plural, shape, size, time

# Digits of a key that lists show: with a million keys, one in 300 lists has two keys that share them.
SHOWN_DIGITS = 12
Profiles = Sequence[tuple[ProfileKey, Profile]]


def group_rows(profiles: Profiles) -> list[dict[str, Any]]:
    """The number of profiles of each kind of mesh as data, in the order of the meshes."""
    groups: dict[tuple[object, ...], list[Profile]] = {}
    for key, profile in profiles:
        of = (key.mesh_shape, key.device_kind, key.hosts, key.jaxlib_version, key.xla_flags)
        groups.setdefault(of, []).append(profile)
    names = ("mesh_shape", "device_kind", "hosts", "jaxlib_version", "xla_flags")
    return [
        dict(zip(names, of, strict=True))
        | {
            "measured": sum(profile.status == "measured" for profile in group),
            "failed": sum(profile.status == "failed" for profile in group),
            "samples": sum(len(profile.samples_s) for profile in group),
            "newest": max(profile.created_at for profile in group),
        }
        for of, group in sorted(groups.items(), key=lambda item: item[0])
    ]


def group_table(profiles: Profiles) -> list[str]:
    """A line for each kind of mesh."""
    rows = group_rows(profiles)
    columns = ["mesh", "device kind", "hosts", "jaxlib", "measured", "failed", "samples", "newest (UTC)"]
    cells = [
        [
            shape(row["mesh_shape"]), str(row["device_kind"]), str(row["hosts"]), str(row["jaxlib_version"]),
            f"{row['measured']:,}", f"{row['failed']:,}", f"{row['samples']:,}", moment(str(row["newest"])),
        ]
        for row in rows
    ]  # fmt: skip
    # Most have no flags that change code; a column of nothing would only be in the way.
    if any(row["xla_flags"] for row in rows):
        columns.append("XLA_FLAGS")
        for row, line in zip(rows, cells, strict=True):
            line.append(str(row["xla_flags"]) or "-")
    return aligned([columns, *cells], "<<<<>>><<"[: len(columns)])


def key_table(profiles: Profiles) -> list[str]:
    """A line for each profile."""
    columns = ["key", "mesh", "device kind", "jaxlib", "typical", "samples", "memory", "collectives", "newest (UTC)"]
    rows = [
        [
            key.digest[:SHOWN_DIGITS], shape(key.mesh_shape), key.device_kind, key.jaxlib_version,
            time(profile.lower_half_mean_s) if profile.status == "measured" else str(profile.failure),
            str(len(profile.samples_s)), _memory(profile), str(sum(each.count for each in profile.collectives)),
            moment(profile.created_at),
        ]
        for key, profile in profiles
    ]  # fmt: skip
    return aligned([columns, *rows], "<<<<>>>><")


def profile_lines(key: ProfileKey, profile: Profile, sessions: Sequence[Profile], has_text: bool) -> list[str]:
    """Everything about a key; `profile` combines all its `sessions`."""
    rows = [
        ("key", key.digest),
        ("mesh", f"{shape(key.mesh_shape)} of {key.device_kind}, hosts {key.hosts}, jaxlib {key.jaxlib_version}"),
        *([("XLA_FLAGS", key.xla_flags)] if key.xla_flags else []),
        ("program", f"{key.program} ({key.program_length:,} characters, {'kept' if has_text else 'not kept'})"),
        ("status", _status(profile)),
        *([("message", " ".join(profile.failure_message.split()))] if profile.failure_message else []),
        *_measurements(profile),
        *_needs(profile),
        ("collectives", "; ".join(_collectives(profile)) or "none"),
        *((f"session {number}", _session(session)) for number, session in enumerate(sessions, start=1)),
    ]
    return aligned(rows, "<<")


def moment(text: str) -> str:
    """A moment as profiles have it ("2026-01-31T12:00:00.000000Z") as "2026-01-31 12:00"."""
    return text[:16].replace("T", " ")


def _status(profile: Profile) -> str:
    return "measured" if profile.status == "measured" else f"failed: {str(profile.failure).replace('_', ' ')}"


def _measurements(profile: Profile) -> Iterable[tuple[str, str]]:
    if profile.status == "measured":
        yield (
            "time",
            (
                f"typical {time(profile.lower_half_mean_s)} (mean of the faster half), "
                f"median {time(profile.median_s)}, "
                f"shortest {time(profile.minimum_s)}, longest {time(max(profile.samples_s))}"
            ),
        )
        yield "spread", f"{profile.spread:.1%} (from the first to the third quartile, over the median)"
        yield (
            "samples",
            f"{len(profile.samples_s)}, in ms: {' '.join(f'{1e3 * each:.4g}' for each in profile.samples_s)}",
        )
    if profile.compile_s is not None:
        yield "compiling", f"{profile.compile_s:.2f} s"


def _needs(profile: Profile) -> Iterable[tuple[str, str]]:
    sizes = {
        "arguments": profile.argument_bytes,
        "outputs": profile.output_bytes,
        "shared by both": profile.aliased_bytes,
        "temporary": profile.temporary_bytes,
    }
    known = [f"{name} {size(each)}" for name, each in sizes.items() if each is not None]
    if known:
        yield "memory", f"{_memory(profile)} a device ({', '.join(known)})"
    work = [
        f"{profile.flops:.3g} flop" if profile.flops is not None else "",
        f"{size(int(profile.bytes_accessed))} read and written" if profile.bytes_accessed is not None else "",
    ]
    if any(work):
        yield "work", f"{', '.join(filter(None, work))}, as XLA counts"


def _memory(profile: Profile) -> str:
    sizes = (profile.argument_bytes, profile.output_bytes, profile.aliased_bytes, profile.temporary_bytes)
    return "unknown" if None in sizes else size(profile.memory_bytes)


def _collectives(profile: Profile) -> list[str]:
    return [
        f"{each.count} {each.kind} of {size(each.size_bytes)} over {plural(each.group_size, 'device')}"
        for each in profile.collectives
    ]


def _session(session: Profile) -> str:
    what = (
        f"{plural(len(session.samples_s), 'sample')}, typical {time(session.lower_half_mean_s)}"
        if session.status == "measured"
        else _status(session)
    )
    return f"{moment(session.created_at)}, {what}{f', on {session.machine}' if session.machine else ''}"
