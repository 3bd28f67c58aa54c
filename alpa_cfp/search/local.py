"""Local improvement of plans: one choice, or the choices of a forest of variables, changed at a time.

Takes a `SearchProblem` without excluded choices, a budget and a plan; gives a plan that no single change makes better.
Invariant: the result is never worse than what was given. One plan is *better* than another if it exceeds the budget by
less, or by as much and it is faster.

The best choices of a forest, with all other choices fixed, take one pass over it (conditioning: Pearl, "Probabilistic
Reasoning in Intelligent Systems" (1988), 4.3.2). Memory is linear in the tables of the problem.
"""

from collections.abc import Sequence

import numpy as np

from alpa_cfp.search.limits import Deadline
from alpa_cfp.search.problem import Array, Neighbour, SearchProblem

# Sweeps over all variables end by convergence; rounding must not prevent that.
_MOST_SWEEPS = 100
# A change that gains less, relative to the whole time, is ignored.
_WORTH = 1e-12


class Local:
    """Improves plans of one problem within one budget (inf: any).

    Args:
        problem: The problem.
        budget_bytes: The most that a plan may take.
        deadline: After it the best plan so far is returned.
    """

    def __init__(self, problem: SearchProblem, budget_bytes: float, deadline: Deadline) -> None:
        self._problem, self._budget_bytes, self._deadline = problem, budget_bytes, deadline
        self._neighbours = problem.neighbours()

    def improved(self, choices: Sequence[int]) -> tuple[int, ...]:
        """A plan that no single change makes better, or the best so far at the deadline."""
        plan = list(choices)
        memory = _Memory(self._problem, plan) if np.isfinite(self._budget_bytes) else None
        unchanged = 0
        for _ in range(_MOST_SWEEPS):
            for v in range(len(plan)):
                if self._deadline.is_over:
                    return tuple(plan)
                unchanged += 1
                best = self._best_choice(v, plan, memory)
                if best != plan[v]:
                    if memory is not None:
                        memory.change(v, plan[v], best)
                    plan[v], unchanged = best, 0
                if unchanged > len(plan):
                    return tuple(plan)
        return tuple(plan)

    def _best_choice(self, v: int, plan: Sequence[int], memory: "_Memory | None") -> int:
        """The best choice of a variable with all others fixed; its own unless another is better."""
        times = [each.time_s[:, plan[each.variable]] for each in self._neighbours[v]]
        total = np.sum([self._problem.variables[v].time_s, *times], axis=0)
        excess = np.zeros(len(total))
        if memory is not None:
            excess = np.maximum(memory.with_choices(v, plan[v]) - self._budget_bytes, 0.0)
        best = int(np.lexsort((total, excess))[0])
        own = plan[v]
        gain = (excess[own] - excess[best], total[own] - total[best])
        return best if gain > (0.0, _WORTH * abs(total[own])) else own

    def forest_improved(self, choices: Sequence[int], start: int, byte_s: float) -> tuple[int, ...]:
        """The best plan that differs only in the variables of one forest, if it is better than the given one.

        Args:
            choices: The plan.
            start: The variable at which the forest begins to grow, breadth first.
            byte_s: The price of a byte, in seconds.
        """
        parents = self._forest(start)
        plan = list(choices)
        costs = {v: self._own_cost(v, plan, parents, byte_s) for v in parents}
        picked: dict[int, np.ndarray] = {}
        for v, edges in reversed(parents.items()):
            if not edges:
                continue
            table = sum((each.time_s for each in edges), costs[v][:, None])
            picked[v] = table.argmin(axis=0)
            costs[edges[0].variable] = costs[edges[0].variable] + table.min(axis=0)
        for v, edges in parents.items():
            plan[v] = int(picked[v][plan[edges[0].variable]]) if edges else int(costs[v].argmin())
        return tuple(plan) if self._badness(plan) < self._badness(choices) else tuple(choices)

    def _badness(self, choices: Sequence[int]) -> tuple[float, float]:
        """Bytes above the budget, and seconds: the less, the better."""
        problem = self._problem
        return max(0.0, problem.memory(choices).total - self._budget_bytes), problem.time(choices)

    def _own_cost(self, v: int, plan: Sequence[int], forest: dict[int, list[Neighbour]], byte_s: float) -> Array:
        """The cost of a variable's choices, without the edges of the forest."""
        variable = self._problem.variables[v]
        cost = variable.time_s + byte_s * variable.summed_bytes
        for each in self._neighbours[v]:
            if each.variable not in forest:
                cost = cost + each.time_s[:, plan[each.variable]]
        return cost

    def _forest(self, start: int) -> dict[int, list[Neighbour]]:
        """Variables that no edges join but those to their parents, with these edges; parents come first."""
        found: dict[int, list[Neighbour]] = {}
        count = len(self._problem.variables)
        for root in ((start + offset) % count for offset in range(count)):
            queue = [root]
            for v in queue:
                if v in found:
                    continue
                inside = [each for each in self._neighbours[v] if each.variable in found]
                if len({each.variable for each in inside}) > 1 or (inside and v == root):
                    continue
                found[v] = inside
                queue += [each.variable for each in self._neighbours[v] if each.variable not in found]
        return found


class _Memory:
    """A plan's bytes, kept up to date while choices change."""

    def __init__(self, problem: SearchProblem, plan: Sequence[int]) -> None:
        self._variables = problem.variables
        used = problem.memory(plan)
        self._summed = float(used.state + used.saved)
        self._transient = np.array([v.transient_bytes[c] for v, c in zip(problem.variables, plan, strict=True)])

    def with_choices(self, v: int, own: int) -> Array:
        """The bytes of the whole plan with each choice of a variable, which now has its choice `own`."""
        summed = self._variables[v].summed_bytes
        others = self._transient.copy()
        others[v] = 0.0
        return self._summed + summed - summed[own] + np.maximum(self._variables[v].transient_bytes, others.max())

    def change(self, v: int, old: int, new: int) -> None:
        """Replaces a variable's choice."""
        summed = self._variables[v].summed_bytes
        self._summed += float(summed[new] - summed[old])
        self._transient[v] = self._variables[v].transient_bytes[new]
