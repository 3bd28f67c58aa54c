"""Plans that are worth running whole, because they could be faster than all that have run.

Takes a search and the plans that have run; gives the plans to run next. The times of blocks, neighbours and collectives
are drawn from what the measurements leave possible; for some of these draws, and for the means, the search finds the
best plan (Thompson (1933)). Beside these stand plans that differ from the fastest one in one kind of block, or have one
state sharding for all: where many plans are nearly as fast, draws find few of them. Other draws tell by how much each
of these plans is expected to improve on the fastest one that has run (Jones et al. (1998), expected improvement; for
several at once Ginsbourger et al. (2010)): as long as the next plan is expected to improve on those that are chosen
already by more than it is worth, it is chosen, too. Candidates that were not measured by themselves are among them,
with what is known of them: a whole plan measures them, too. Invariant: the same measurements give the same plans.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from alpa_cfp.search import MemoryBudgetError, NoPlanError
from alpa_cfp.select.candidate_costs import Choices
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.select.plan_variants import of_one_kind, of_one_state_sharding

# How often times are drawn to find plans, and to compare them.
_FINDING, _COMPARING = 8, 48
# The most plans that differ from the fastest one in one kind of block, and the most programs that are looked at for
# each plan that may be chosen.
_NEIGHBOURS, _LOOKS = 16, 2
# The standard deviation of a plan's time that no part of it explains, relative to it. Of plans that were near the top
# and had not run, 0.03 to 0.08 by case (`benchmarks.cfp_regret`), with what the model knows to be uncertain.
_UNEXPLAINED = 0.04
# By what share of a step a plan has to be expected to be faster, for each second that it takes to compile and time one,
# and its bounds.
_WORTH_A_SECOND, _LEAST_GAIN, _MOST_GAIN = 0.004, 0.003, 0.02
# The same of plans that are timed at first, when it is not known yet how long that takes.
FIRST_GAIN = 0.015


@dataclass(frozen=True, slots=True)
class Prospects:
    """The plans that could be better than the known ones.

    Attributes:
        plans: Plans that have not run, the most promising first.
        gain: By what share of the step time the best of all plans is expected to be faster than the best known one,
            once these have run.
    """

    plans: tuple[Choices, ...]
    gain: float


def worthwhile(taken_s: float, misses: int) -> float:
    """By what share of a step a plan has to be expected to be faster to be timed.

    Args:
        taken_s: What it takes to compile and time one.
        misses: How many times in a row plans that were timed were not faster. What was expected of them was too much:
            the next ones have to promise twice as much for each time, up to a bound.
    """
    return min(2**misses * max(_WORTH_A_SECOND * taken_s, _LEAST_GAIN), _MOST_GAIN)


def prospects(
    search: PlanSearch,
    known: Collection[Choices],
    budget_bytes: int | None,
    most: int,
    others: Collection[Choices] = (),
    failed: Collection[Choices] = (),
    *,
    searches: bool = True,
    least_gain: float,
) -> Prospects:
    """The plans that are worth running next.

    Args:
        search: The search.
        known: The plans that have run, and those that will anyway.
        budget_bytes: The memory that a plan may be predicted to need; None without limit.
        most: The greatest number of plans.
        others: Plans that are compared with those that the search finds.
        failed: Plans that cannot be run.
        searches: Whether the search looks for plans, too; otherwise only `others` are compared.
        least_gain: The share of the step time by which a plan has to be expected to be faster, at least.
    """
    random, found = np.random.default_rng(len(known)), dict[Choices, None]()
    finding = (search.costs.means, *(search.costs.drawn(random) for _ in range(_FINDING))) if searches else ()
    for drawn in finding:
        try:
            found[search.cheapest_with(drawn, budget_bytes)] = None
        except (NoPlanError, MemoryBudgetError):
            continue
    found |= dict.fromkeys(others)
    if searches:
        found |= dict.fromkeys(_neighbours(search, known, budget_bytes))
    plans = [choices for choices in found if choices not in known and choices not in failed]
    machines = [search.costs.drawn(random) for _ in range(_COMPARING)]

    def times_s(choices: Choices) -> np.ndarray:
        """What a plan takes by each draw."""
        if choices in search.costs.plans_s:
            return np.full(_COMPARING, search.costs.plans_s[choices])
        own = np.random.default_rng(choices)  # the same each time
        unexplained = 1 + _UNEXPLAINED * own.standard_normal(_COMPARING)
        return unexplained * [search.time_with(choices, drawn) for drawn in machines]

    best = np.min([times_s(choices) for choices in known], axis=0)
    known_s, times = float(best.mean()), {choices: times_s(choices) for choices in plans}
    chosen, looks = list[Choices](), 0

    def gain(choices: Choices) -> float:
        """By what share of the step time a plan is expected to be faster than the known and chosen ones."""
        return float(np.maximum(best - times[choices], 0).mean()) / known_s

    while len(chosen) < most:
        may_look = looks < _LOOKS * most
        able = [each for each in plans if each not in chosen and (may_look or search.is_seen(each))]
        choices = max(able, key=gain, default=None)
        if choices is None or gain(choices) < least_gain:
            break
        if not search.is_seen(choices):  # its program may take something else than its parts, and so may others like it
            search.look_at(choices)
            looks += 1
            times |= {each: times_s(each) for each in plans if each == choices or not search.is_seen(each)}
            continue
        chosen.append(choices)
        best = np.minimum(best, times[choices])
    return Prospects(tuple(chosen), 1 - float(best.mean()) / known_s)


def _neighbours(search: PlanSearch, known: Collection[Choices], budget_bytes: int | None) -> list[Choices]:
    """Plans like the fastest one that has run: with one state sharding for all blocks, and, if one has run, the best
    predicted ones that differ in one kind of block.
    """
    timed = {choices: search.costs.plans_s[choices] for choices in known if choices in search.costs.plans_s}
    fastest = min(timed, key=lambda choices: (timed[choices], choices), default=next(iter(known)))
    blocks, problem = search.costs.block_candidates, search.problem
    alike = [each for each in of_one_state_sharding(blocks, fastest) if math.isfinite(problem.time(each))]
    changed = {each: problem.time(each) for each in (of_one_kind(blocks, fastest) if timed else ())}
    able = [each for each, time_s in changed.items() if math.isfinite(time_s) and each not in known]
    best = sorted(able, key=lambda choices: (changed[choices], choices))[:_NEIGHBOURS]
    return [
        each
        for each in dict.fromkeys((*alike, *best))
        if each not in known and (budget_bytes is None or problem.solution(each).memory.total <= budget_bytes)
    ]
