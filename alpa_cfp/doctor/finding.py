"""The result of one check: its status, the facts, and the fix. Invariant: every problem has a fix."""

from dataclasses import dataclass, field
from typing import Any, Literal

# With a problem something does not work; a note is worth knowing, and everything works.
Status = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        check: Name of the check.
        status: Its status.
        found: The facts, in one line.
        fix: A command or a sentence; "" if there is nothing to do.
        details: The facts as data, for the JSON output.
    """

    check: str
    status: Status
    found: str
    fix: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status == "problem" and not self.fix:
            raise ValueError(f"a problem needs a fix: {self.check}: {self.found}")
