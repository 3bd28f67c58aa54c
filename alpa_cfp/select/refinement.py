"""Takes the fastest plan that fits into memory, of those that ran as whole programs (CFP, section 7).

Takes what runs plans of a program whole, and a budget; gives one plan. Memory of blocks does not add up to that of the
step exactly: that of the compiled programs is compared with the budget. If all need more than predicted, the search is
repeated with a budget reduced by that ratio. Invariants: a plan that is returned fits, if it was compiled; the same
profiles give the same plan.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from alpa_cfp.errors import NoRunnablePlanError
from alpa_cfp.search import MemoryBudgetError, Solution
from alpa_cfp.select.candidate_costs import Choices
from alpa_cfp.select.measured_plan import MeasuredPlan, budget_error
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.select.trial_rounds import TrialRounds

logger = logging.getLogger(__name__)

_ATTEMPTS = 4
# The baselines that are compiled before it is said that no plan fits.
_SMALLEST = 3
# Step times within this factor count as equal after the last round, and so do memories within the second factor.
_ALIKE = 1.01
_ALIKE_MEMORY = 1.05
# The share of the budget that the next search may use when plans need more than predicted.
_RESERVE = 0.99
_FALLBACK = (
    "plans need more memory than predicted, by a factor that differs from plan to plan: a plan of little memory is "
    "taken, where a faster one may fit"
)


@dataclass(frozen=True)
class Refinement:
    """Refines the plans of one program.

    Attributes:
        rounds: Runs them whole.
    """

    rounds: TrialRounds

    @property
    def search(self) -> PlanSearch:
        """The search for plans."""
        return self.rounds.search

    @property
    def tried(self) -> dict[Choices, MeasuredPlan]:
        """The plans that ran whole, by their choices."""
        return self.rounds.tried

    def best(self, budget_bytes: int | None) -> MeasuredPlan:
        """The fastest plan within the budget.

        Raises:
            NoRunnablePlanError: none of the plans could be compiled and run end to end.
            MemoryBudgetError: no plan fits into the budget; it names what the compiler says of the smallest of those
                that were compiled: the one that is predicted to need least, and the smallest baselines, among them.
        """
        if budget_bytes is None:
            self.rounds.expect_data_parallel()
            return self._fastest(self.rounds.run(self.search.best(self.rounds.count, None)))
        # The memory that plans need, relative to what was predicted.
        ratio, fallback = 1.0, None
        for _ in range(_ATTEMPTS):
            predicted = int(budget_bytes / ratio)
            try:
                found, is_least = self.search.best(self.rounds.count, predicted), False
            except MemoryBudgetError as error:
                found, is_least = self.search.best(1, error.least_bytes), True
            tried = self.rounds.run(found, predicted)
            fitting = [
                each
                for each in tried
                if not each.failure and (each.needed_bytes is None or each.needed_bytes <= budget_bytes)
            ]
            worst = max((each for each in tried if each.needed_bytes), key=lambda each: each.memory_ratio, default=None)
            if worst is None and fitting:
                self.search.caveats.warn("no plan could be held against the memory budget by its compiled program")
            if worst is None or (fitting and not is_least):
                return self._fastest(fitting or tried)
            if is_least and not fitting:
                if fallback is not None:
                    self.search.caveats.warn(_FALLBACK)
                    return fallback
                return self._smallest(budget_bytes)
            if fitting:
                fallback = self._fastest(fitting)
            ratio = worst.memory_ratio / _RESERVE
            logger.info("CFP: plans need %.2f times the memory that was predicted; searching again", worst.memory_ratio)
        if fallback is not None:
            self.search.caveats.warn(_FALLBACK)
            return fallback
        self.search.caveats.warn(
            f"in {_ATTEMPTS} attempts every plan needed more memory than predicted: the one of least memory is taken"
        )
        least = self._fastest(self.rounds.run(self._least(budget_bytes), 0))
        if least.needed_bytes is not None and least.needed_bytes > budget_bytes:
            return self._smallest(budget_bytes)
        return least

    def _smallest(self, budget_bytes: int) -> MeasuredPlan:
        """The fastest plan that fits of all that were tried, and of the baselines that are predicted to need least.

        Predictions are not exact, so that the smallest plan need not be the one that is predicted to be.

        Raises:
            MemoryBudgetError: none fits.
        """
        by_hand = sorted(self.rounds.baselines().values(), key=lambda plan: (plan.memory.total, plan.choices))
        new = [plan for plan in by_hand[:_SMALLEST] if plan.choices not in self.tried and math.isfinite(plan.time_s)]
        if new:
            self.rounds.run(new, 0, len(new))
        compiled = [each for each in self.tried.values() if each.needed_bytes and not each.failure]
        fitting = [each for each in compiled if (each.needed_bytes or 0) <= budget_bytes]
        if fitting:
            return self._fastest(fitting)
        raise budget_error(min(compiled, key=lambda each: each.needed_bytes or 0), budget_bytes)

    def _least(self, budget_bytes: int) -> Sequence[Solution]:
        """The plan that is predicted to need least memory."""
        try:
            return self.search.best(1, min(budget_bytes, 1))
        except MemoryBudgetError as error:
            return self.search.best(1, error.least_bytes)

    def _fastest(self, tried: Sequence[MeasuredPlan]) -> MeasuredPlan:
        """The fastest plan; of equally fast ones, one of least memory, and of these the one with fewest collectives.

        If none was run, the best predicted plan.
        """
        seconds = [each.selection_s for each in tried if each.selection_s is not None]
        if not seconds:
            if all(each.failure for each in tried):
                raise NoRunnablePlanError([each.failure for each in tried])
            self.search.caveats.warn(
                "no plan was timed end to end, because none of them has a profile: the best predicted one is taken"
            )
            return next(each for each in tried if not each.failure)
        limit = _ALIKE * min(seconds)
        alike = [each for each in tried if each.selection_s is not None and each.selection_s <= limit]
        enough = _ALIKE_MEMORY * min(each.needed_bytes or 0 for each in alike)
        frugal = [each for each in alike if (each.needed_bytes or 0) <= enough]
        return min(
            frugal, key=lambda each: (math.inf if each.collectives is None else each.collectives, each.selection_s)
        )
