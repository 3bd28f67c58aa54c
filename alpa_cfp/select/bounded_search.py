"""Searches of one program's planning, each within limits of time and memory.

Takes search problems of one program; gives the cheapest plan of each, or the best that a search found in its time.
Planning searches many times, with other costs each time: where one search did not end, others will not either.
Invariant: searches that end by themselves give the same plans whatever the time limit.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from alpa_cfp.search import SearchProblem, Solution, search

logger = logging.getLogger(__name__)

# What searches may take of their limit after one of the same program that did not come close to the best plan: they
# will not either, and plans hardly get better after the first seconds. The same for a search with drawn times.
_LATER_SHARE, _DRAWN_SHARE = 1 / 8, 1 / 60
# Searches that are not exact end when no plan can be faster by more than this share: times are known less well. The
# same for drawn times.
_CLOSE, _CLOSE_DRAWN = 0.002, 0.01


@dataclass
class BoundedSearch:
    """Searches for the plans of one program.

    Attributes:
        limit_s, memory_bytes: The limits of one search; after one that did not come close to the best plan, others take
            a part of the time.
        baselines: Gives hand-written plans by name for a search problem, with which what a search found that was not
            exact is compared; None: with none.
    """

    limit_s: float
    memory_bytes: int
    baselines: Callable[[SearchProblem], Mapping[str, Solution]] | None = None
    _is_close: bool = field(default=True, init=False)

    def best(self, problem: SearchProblem, budget_bytes: int | None) -> Solution:
        """The cheapest plan, as far as the search came, or a cheaper hand-written one.

        Raises:
            NoPlanError: a block has no candidate that can be run.
            MemoryBudgetError: no plan fits into the budget.
        """
        time_s = self.limit_s if self._is_close else _LATER_SHARE * self.limit_s
        found = search(problem, budget_bytes, time_limit_s=time_s, memory_limit_bytes=self.memory_bytes, enough=_CLOSE)
        is_close = found.gap_s <= _CLOSE * found.time_s
        self._is_close = self._is_close and is_close
        return found if is_close else self._or_baseline(found, problem, budget_bytes)

    def of_drawn(self, problem: SearchProblem, budget_bytes: int | None) -> Solution:
        """A plan for drawn times: there are many such searches, and none has to be better than the times are known.

        Raises:
            NoPlanError, MemoryBudgetError: As `best`.
        """
        # Enough for them to end by themselves where others did: the same profiles then give the same plans.
        limit_s = (_LATER_SHARE if self._is_close else _DRAWN_SHARE) * self.limit_s
        return search(
            problem, budget_bytes,
            time_limit_s=limit_s, memory_limit_bytes=self.memory_bytes, enough=_CLOSE_DRAWN, thorough=False,
        )  # fmt: skip

    def _or_baseline(self, found: Solution, problem: SearchProblem, budget_bytes: int | None) -> Solution:
        """The plan that a search found which was not exact, or a faster baseline."""
        for name, plan in ({} if self.baselines is None else self.baselines(problem)).items():
            if plan.time_s < found.time_s and (budget_bytes is None or plan.memory.total <= budget_bytes):
                logger.info("CFP: %s is predicted to be faster than what the search has found", name)
                found = replace(plan, gap_s=max(found.gap_s - (found.time_s - plan.time_s), 0.0))
        return found
