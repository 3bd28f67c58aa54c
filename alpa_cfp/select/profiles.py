"""What profiles say beside times: what a compiled program communicates, and why a program failed."""

from alpa_cfp.database import Profile
from alpa_cfp.spmd.partition import Collective


def compiled_collectives(profile: Profile | None) -> tuple[Collective, ...] | None:
    """The collectives of the compiled program, if XLA partitioned it; None if they were not read."""
    if profile is None or not profile.collectives_compiled:
        return None
    return tuple(
        Collective(each.kind, each.size_bytes, each.group_size)
        for each in profile.collectives
        for _ in range(each.count)
    )


def failure_of(profile: Profile | None) -> str:
    """Why a program could not be run, in one line; "" if it could, or if there is no profile."""
    if profile is None or profile.status != "failed":
        return ""
    return f"{profile.failure}: {profile.failure_message.partition(chr(10))[0]}"
