"""Caveats of a search: what its plan was chosen without, and why there is none."""

import math
from collections.abc import Collection, Mapping, Sequence

from alpa_cfp.candidates.candidate import Candidate
from alpa_cfp.plan.caveats import Caveats
from alpa_cfp.quantities import plural
from alpa_cfp.search import NoPlanError
from alpa_cfp.select.candidate_costs import CandidateCosts

# Reasons that a message names at most.
_NAMED = 3


def warn_of_time(caveats: Caveats, consequence: str) -> None:
    """Adds the caveat that planning ended because its time was over."""
    caveats.warn(f"planning_budget_s was over: {consequence}")


def add_search_caveats(
    caveats: Caveats,
    candidates: Sequence[Candidate],
    seconds: Mapping[int, float],
    failures: Mapping[int, str],
    compiled: Collection[int],
    gap_s: float,
) -> None:
    """Adds caveats after the last search.

    Args:
        caveats: Receives them.
        candidates: The distinct candidates.
        seconds: The measured time of each candidate that was asked for, by its number; inf if there is none.
        failures: Why candidates failed, by their numbers; "" if they did not.
        compiled: The numbers of those whose compiled programs' collectives are known.
        gap_s: See `Solution.gap_s`.
    """
    failed = sum(bool(failure) for failure in failures.values())
    if failed:
        caveats.note(
            f"{failed} of {plural(len(seconds), 'program')} of blocks could not be run, so their strategies "
            "are in no plan"
        )
    missing = sum(math.isinf(each) and not failures.get(number) for number, each in seconds.items())
    if missing:
        caveats.warn(
            f"{missing} of {plural(len(seconds), 'program')} of blocks have no profile, so their strategies are in no "
            "plan"
        )
    estimated = [each for number, each in enumerate(candidates) if number not in compiled]
    for reasons, but in (
        (
            [each.predicted for each in estimated],
            "they are estimated as if each device computed whole what Shardy does not split",
        ),
        ([each.unread for each in estimated], "what they communicate is not known, and is in no estimate"),
    ):
        left = [reason for reason in reasons if reason]
        if left:
            caveats.warn(
                f"{len(left)} of {plural(len(candidates), 'program')} of blocks are left to XLA's partitioner "
                f"({'; '.join(list(dict.fromkeys(left))[:_NAMED])}): {but}"
            )
    if gap_s > 0:
        caveats.warn(
            "the search was not exact, because of its limit of time (search_limit_s) or memory (search_memory_bytes)"
        )


def with_reasons(error: NoPlanError, costs: CandidateCosts, names: Sequence[str]) -> NoPlanError:
    """The error of a search with what is known of why blocks have no candidate.

    Args:
        error: The error.
        costs: The costs of the candidates.
        names: The name of each block in the search.
    """
    why: dict[str, str] = {}
    for block, name in zip(costs.block_candidates, names, strict=True):
        if name in error.names:
            failures = (costs.failures.get(costs.target(number)) for number in costs.numbers[block.block])
            reasons = dict.fromkeys(failure for failure in failures if failure)
            why[name] = "; ".join(list(reasons)[:_NAMED]) or "none of its programs has a profile"
    return NoPlanError(error.names, why)
