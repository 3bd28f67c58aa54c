"""The values of a profile database: keys of compiled programs on a mesh, and their measured profiles.

Frozen values. Invariant: every value is in canonical form (plain ints and floats, sorted flags and collectives, one
spelling of a time), so that values of one meaning are equal, with the same text and the same digest; a value that
cannot be measured (a time of zero, a NaN) cannot be made.
"""

import hashlib
import json
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from alpa_cfp.database.errors import ProfileValueError

Status = Literal["measured", "failed"]
Failure = Literal["out_of_memory", "compile_failed", "timed_out", "crashed"]


def text_digest(text: str) -> str:
    """The SHA-256 of a text, as 64 hexadecimal digits."""
    try:
        return hashlib.sha256(text.encode()).hexdigest()
    except UnicodeEncodeError:
        raise ProfileValueError("the program's text", text, "it must be valid Unicode") from None


def utc_now() -> str:
    """The current time in the canonical form: `2026-01-31T12:00:00.000000Z`."""
    return canonical_time("created_at", datetime.now(UTC).isoformat())


def canonical_time(field: str, text: str) -> str:
    """An ISO 8601 time with an offset, in UTC with microseconds: texts then compare as the times do."""
    rule = "it must be an ISO 8601 time with its offset from UTC, as 2026-01-31T12:00:00Z"
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None:
            raise ProfileValueError(field, text, rule)
        return time.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, ProfileValueError):
            raise
        raise ProfileValueError(field, text, rule) from None


@dataclass(frozen=True, slots=True, order=True)
class ProfileKey:
    """Identifies a compiled program on one kind of mesh; programs with equal keys have the same machine code.

    `program` is the SHA-256 of the program's canonical text, with its shardings, and `program_length` the number of its
    characters; the text itself is given to the database with the profile. `xla_flags` are those that change code: their
    order does not matter, and of a flag that is given twice the last counts, as in XLA. Keys are ordered by their
    fields in turn.
    """

    program: str
    program_length: int
    mesh_shape: tuple[int, ...]
    hosts: str
    device_kind: str
    jaxlib_version: str
    xla_flags: str = ""

    def __post_init__(self) -> None:
        if not (
            isinstance(self.program, str) and len(self.program) == 64 and set(self.program) <= set("0123456789abcdef")
        ):
            rule = "it must be a SHA-256 as 64 lower-case hexadecimal digits: use ProfileKey.of for a program's text"
            raise ProfileValueError("program", self.program, rule)
        _set(self, "program_length", _integer("program_length", self.program_length))
        if isinstance(self.mesh_shape, str) or not isinstance(self.mesh_shape, Iterable):
            raise ProfileValueError("mesh_shape", self.mesh_shape, "it must be a tuple of whole numbers")
        _set(self, "mesh_shape", tuple(_integer("mesh_shape", size, least=1) for size in self.mesh_shape))
        if not self.mesh_shape:
            raise ProfileValueError("mesh_shape", (), "a mesh has at least one axis")
        for field in ("hosts", "device_kind", "jaxlib_version", "xla_flags"):
            _check_name(field, getattr(self, field))
        by_name = {flag.split("=", 1)[0]: flag for flag in self.xla_flags.split()}
        _set(self, "xla_flags", " ".join(sorted(by_name.values())))

    @classmethod
    def of(
        cls,
        program_text: str,
        *,
        mesh_shape: Sequence[int],
        hosts: str,
        device_kind: str,
        jaxlib_version: str,
        xla_flags: str = "",
    ) -> "ProfileKey":
        """The key of a program that is given by its canonical text."""
        digest = text_digest(program_text)
        return cls(digest, len(program_text), tuple(mesh_shape), hosts, device_kind, jaxlib_version, xla_flags)

    @property
    def digest(self) -> str:
        """64 hexadecimal digits that are the same for equal keys, in every process and version."""
        return text_digest(canonical_json({name: getattr(self, name) for name in ProfileKey.__slots__}))


@dataclass(frozen=True, slots=True, order=True)
class Collective:
    """Equal collectives of a program: `count` of one kind, each of `size_bytes` a device, in groups of `group_size`."""

    kind: str
    size_bytes: int
    group_size: int
    count: int

    def __post_init__(self) -> None:
        _check_name("a collective's kind", self.kind)
        for field, least in (("size_bytes", 0), ("group_size", 1), ("count", 1)):
            _set(self, field, _integer(f"a collective's {field}", getattr(self, field), least=least))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The measurements of a program in one session, or its failure.

    `samples_s` holds every sample, in the order taken. A measured profile has samples, the compile time and the four
    sizes, which are bytes a device; `flops` and `bytes_accessed` are None where XLA does not report them. `collectives`
    are those of the partitioned program, or, with `collectives_compiled`, of the compiled one, as where XLA partitions
    it. A failed one has no samples, but the values from before the failure. `created_at` is any ISO 8601 time with an
    offset, kept in UTC.

    Raises:
        ProfileValueError: a field has an invalid value, or contradicts the status.
    """

    status: Status
    created_at: str
    samples_s: tuple[float, ...] = ()
    compile_s: float | None = None
    argument_bytes: int | None = None
    output_bytes: int | None = None
    aliased_bytes: int | None = None
    temporary_bytes: int | None = None
    flops: float | None = None
    bytes_accessed: float | None = None
    collectives: tuple[Collective, ...] = ()
    failure: Failure | None = None
    failure_message: str = ""
    machine: str = ""
    collectives_compiled: bool = False

    def __post_init__(self) -> None:
        _set(self, "created_at", canonical_time("created_at", self.created_at))
        _set(self, "samples_s", tuple(_number("samples_s", sample, positive=True) for sample in self.samples_s))
        for field in ("compile_s", "flops", "bytes_accessed"):
            value = getattr(self, field)
            _set(self, field, None if value is None else _number(field, value))
        for field in _SIZES:
            value = getattr(self, field)
            _set(self, field, None if value is None else _integer(field, value))
        _set(self, "collectives", tuple(sorted(_collective(item) for item in self.collectives)))
        for field in ("failure_message", "machine"):
            if not isinstance(getattr(self, field), str):
                raise ProfileValueError(field, getattr(self, field), "it must be a text")
        if not isinstance(self.collectives_compiled, bool):
            raise ProfileValueError("collectives_compiled", self.collectives_compiled, "it must be true or false")
        self._check_status()

    def _check_status(self) -> None:
        if self.status == "measured":
            if not self.samples_s:
                raise ProfileValueError("samples_s", (), "a measured profile has at least one sample")
            for field in ("compile_s", *_SIZES):
                if getattr(self, field) is None:
                    raise ProfileValueError(field, None, "a measured profile has it")
            if self.failure is not None or self.failure_message:
                raise ProfileValueError("failure", self.failure or self.failure_message, "a measured profile has none")
        elif self.status == "failed":
            if self.samples_s:
                raise ProfileValueError("samples_s", self.samples_s, "a failed profile has none")
            if self.failure not in get_args(Failure):
                raise ProfileValueError("failure", self.failure, f"it must be one of {', '.join(get_args(Failure))}")
        else:
            raise ProfileValueError("status", self.status, f"it must be one of {', '.join(get_args(Status))}")

    @property
    def minimum_s(self) -> float:
        """The shortest sample, in seconds."""
        return min(self._samples())

    @property
    def lower_half_mean_s(self) -> float:
        """The mean of the faster half of the samples, in seconds: the time of an undisturbed run."""
        samples = sorted(self._samples())
        return statistics.fmean(samples[: (len(samples) + 1) // 2])

    @property
    def median_s(self) -> float:
        """The median of the samples, in seconds."""
        return statistics.median(self._samples())

    @property
    def spread(self) -> float:
        """The interquartile range over the median: 0.1 means that half the samples are within 10% of each other."""
        if len(self._samples()) < 2:
            return 0.0
        lower, middle, upper = statistics.quantiles(self.samples_s, n=4, method="inclusive")
        return (upper - lower) / middle

    @property
    def memory_bytes(self) -> int:
        """The memory of a device during a run: arguments + outputs - aliased + temporaries."""
        sizes = [getattr(self, field) for field in _SIZES]
        if None in sizes:
            raise ProfileValueError(
                "memory_bytes", None, f"it needs {', '.join(_SIZES)}, which this failed profile lacks"
            )
        arguments, outputs, aliased, temporaries = sizes
        return arguments + outputs - aliased + temporaries

    def _samples(self) -> tuple[float, ...]:
        if not self.samples_s:
            raise ProfileValueError(
                "samples_s", (), f"only a measured profile has times; this one failed: {self.failure}"
            )
        return self.samples_s


def combined(sessions: Iterable[Profile]) -> Profile:
    """One profile of all sessions of a key: every sample, in the order of the sessions' times.

    All other fields are the newest session's: the compiler should give equal ones each time. A program that was
    measured once can be run, so failures before and after (a host that went away) are ignored.

    Raises:
        ValueError: there is no session.
    """
    ordered = sorted(set(sessions), key=session_order)
    if len(ordered) == 1:
        return ordered[0]
    measured = [session for session in ordered if session.status == "measured"]
    newest = (measured or ordered)[-1:]
    if not newest:
        raise ValueError("a combined profile needs at least one session")
    fields = {name: getattr(newest[0], name) for name in Profile.__dataclass_fields__}
    return Profile(**{**fields, "samples_s": tuple(sample for session in measured for sample in session.samples_s)})


def session_order(profile: Profile) -> tuple[str, str]:
    """A sort key of sessions: by time, and those of one time in an order that is the same on every machine."""
    return profile.created_at, repr(profile)


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: ASCII, sorted names, no spaces; floats so that they are read back bit for bit."""
    return json.dumps(value, sort_keys=True, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


# Control characters are invisible in a list of keys, and lone surrogates have no UTF-8.
_INVALID_NAME = re.compile("[\x00-\x1f\ud800-\udfff]")
_SIZES = ("argument_bytes", "output_bytes", "aliased_bytes", "temporary_bytes")


def _set(value: object, field: str, to: object) -> None:
    object.__setattr__(value, field, to)  # the only way to normalise a field of a frozen dataclass


def _integer(field: str, value: Any, *, least: int = 0) -> int:
    # __index__ takes numpy's integers and no floats; True is an int only by accident.
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < least:
        raise ProfileValueError(field, value, f"it must be a whole number of at least {least}")
    return int(value)


def _number(field: str, value: Any, *, positive: bool = False) -> float:
    try:
        # __float__ is what numbers have, numpy's too, and texts have not.
        number = float(value) if hasattr(value, "__float__") and not isinstance(value, bool) else math.nan
    except (TypeError, OverflowError):  # an array, an int beyond floats
        number = math.nan
    if not 0 <= number < math.inf or (positive and number == 0):
        rule = f"it must be a finite number {'above zero' if positive else 'of at least zero'}"
        raise ProfileValueError(field, value, rule)
    return abs(number)  # -0.0 equals 0.0, so it must be spelled alike


def _collective(value: Any) -> Collective:
    if isinstance(value, Collective):
        return value
    try:
        return Collective(*value)
    except TypeError:
        rule = "it must be a Collective, or its kind, bytes, group size and count"
        raise ProfileValueError("a collective", value, rule) from None


def _check_name(field: str, value: object) -> None:
    if not isinstance(value, str) or _INVALID_NAME.search(value):
        raise ProfileValueError(field, value, "it must be a text without control characters")
