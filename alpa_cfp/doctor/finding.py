"""One thing that was looked at: how it stands, what was found, and what to do where it is wrong.

Invariant: a problem says how to fix it; what is fine needs nothing.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

# A problem keeps something from working; a note is worth knowing, and everything works.
Status = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        check: What was looked at, in a word or two.
        status: How it stands.
        found: What was found, in a line.
        fix: What to do, as a command or a sentence; "" where there is nothing to do.
        details: The same as data, for programs that read the report.
    """

    check: str
    status: Status
    found: str
    fix: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status == "problem" and not self.fix:
            raise ValueError(f"a problem needs a fix: {self.check}: {self.found}")
