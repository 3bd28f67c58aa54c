"""Plans that are worth running whole, because they could be faster than all that have run (Thompson (1933)).

Takes a search and the plans that have run; gives other plans, and how much faster than the best of the known plans the
best of all is expected to be. The times of blocks, neighbours and collectives are drawn several times from what the
measurements leave possible. For each draw the search finds the best plan: had the machine such times, it would be this
much faster than the fastest one of those that have run, whose times are known. The mean of that over the draws is what
a perfect choice would gain. Candidates that were not measured by themselves are among them, with what is known of
them: a whole plan measures them, too. Invariant: the same measurements give the same plans.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from alpa_cfp.search import MemoryBudgetError, NoPlanError
from alpa_cfp.select.candidate_costs import Choices
from alpa_cfp.select.plan_search import PlanSearch


@dataclass(frozen=True, slots=True)
class Prospects:
    """The plans that could be better than the known ones.

    Attributes:
        plans: Plans that have not run, the most promising first.
        gain: By what share of the step time the best of all plans is expected to be faster than the best known one.
    """

    plans: tuple[Choices, ...]
    gain: float


def prospects(search: PlanSearch, tried: Collection[Choices], budget_bytes: int | None, draws: int) -> Prospects:
    """The plans that could be better than those that have run.

    Args:
        search: The search.
        tried: The plans that have run.
        budget_bytes: The memory that a plan may be predicted to need; None without limit.
        draws: How often times are drawn.
    """
    random = np.random.default_rng(len(tried))
    gains: dict[Choices, float] = {}
    for _ in range(draws):
        known = search.costs.drawn(random)
        try:
            found = search.cheapest_with(known, budget_bytes)
        except (NoPlanError, MemoryBudgetError):
            continue
        if found in tried:
            continue
        search.look_at(found)
        own_s, known_s = search.time_with(found, known), min(search.costs.plans_s[each] for each in tried)
        if own_s < known_s:
            gains[found] = gains.get(found, 0.0) + (1 - own_s / known_s) / draws
    plans = sorted(gains, key=lambda choices: (-gains[choices], choices))
    return Prospects(tuple(plans), sum(gains.values()))
