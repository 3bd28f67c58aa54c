"""What is told of programs that are measured: what begins, and what is finished.

Plain values. Invariant: nothing here imports JAX, so that who only passes them on does without it.
"""

from dataclasses import dataclass
from typing import Literal

from alpa_cfp.database import Failure, Profile, utc_now

Stage = Literal["compile", "run", "inspect"]

# How XLA, Python and C++ word it.
_OUT_OF_MEMORY = ("resource_exhausted", "out of memory", "bad_alloc", "memoryerror")


@dataclass(frozen=True, slots=True)
class Started:
    """From now on the program with this number is compiled, or run once, or its executable is looked into."""

    index: int
    stage: Stage


@dataclass(frozen=True, slots=True)
class Finished:
    """The program with this number has its profile.

    Attributes:
        is_lasting: Whether that is so for good: a failure that was not the program's own is one for now.
    """

    index: int
    profile: Profile
    is_lasting: bool = True


def failed(message: str, failure: Failure) -> Profile:
    """The profile of a program that failed; running out of memory is told by the message."""
    if any(words in message.lower() for words in _OUT_OF_MEMORY):
        failure = "out_of_memory"
    return Profile(status="failed", created_at=utc_now(), failure=failure, failure_message=message)
