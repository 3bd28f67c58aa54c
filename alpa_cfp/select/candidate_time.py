"""What is known of the time of each candidate of a block, and from where.

Takes the costs of candidates; gives what a plan's account says of them. Invariant: a candidate that failed has no time.
"""

import math
from dataclasses import dataclass

from alpa_cfp.candidates.block_candidates import BlockCandidates
from alpa_cfp.select.candidate_costs import CandidateCosts
from alpa_cfp.spmd.partition import Collective


@dataclass(frozen=True, slots=True)
class CandidateTime:
    """The time of a candidate in a step, and its source.

    Attributes:
        time_s: Seconds in a step; None for a candidate that failed or has no profile.
        measured: Whether the candidate was measured; otherwise `time_s` is estimated.
        failure: Why the candidate could not be run; "" if it could, or was not tried.
        compiled: The collectives of the compiled program, if XLA partitioned it and they were read; else None.
    """

    time_s: float | None
    measured: bool
    failure: str = ""
    compiled: tuple[Collective, ...] | None = None


def candidate_times(costs: CandidateCosts, block: BlockCandidates) -> list[CandidateTime]:
    """Returns the time of each candidate of a block in a plan."""
    found: list[CandidateTime] = []
    for number in costs.numbers[block.block]:
        target, time_s = costs.target(number), costs.time_s(number)
        failure, compiled = costs.failures.get(target, ""), costs.compiled.get(target)
        known_s = time_s if math.isfinite(time_s) else None
        found.append(CandidateTime(known_s, target in costs.seconds, failure, compiled))
    return found
