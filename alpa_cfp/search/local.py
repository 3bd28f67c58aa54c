"""Local improvement of plans: one choice at a time, or the choices of a forest of variables.

Takes a `SearchProblem` without excluded choices, a budget, a price of a byte and a plan; gives a plan that no change of
one choice makes better, and that fits if changes of one choice at a time lead to one that does. Memory is linear in the
tables of the problem.

At a price of a byte, plans within and above the budget are improved alike; then what is too much is saved where that
costs fewest seconds a byte, and what is left is spent. The best choices of a forest, with all other choices fixed, take
one pass over it (conditioning: Pearl, "Probabilistic Reasoning in Intelligent Systems" (1988), 4.3.2).
"""

from collections.abc import Sequence

import numpy as np

from alpa_cfp.search.limits import Deadline
from alpa_cfp.search.problem import Array, Index, Neighbour, SearchProblem

# Rounds end by convergence; rounding must not prevent that.
_MOST_ROUNDS = 200
# A change that gains less, relative to the whole time, is ignored.
_WORTH = 1e-12
# Of all variables so many may be changed to save bytes before the cost of further changes is looked at again.
_SAVED_AT_ONCE = 1 / 16


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
        counts = [v.choices for v in problem.variables]
        self._first = np.concatenate([[0], np.cumsum(counts)[:-1]])
        self._owner = np.repeat(np.arange(len(counts)), counts)
        self._own_s = np.concatenate([v.time_s for v in problem.variables])
        self._summed = np.concatenate([v.summed_bytes for v in problem.variables])
        self._transient = np.concatenate([v.transient_bytes for v in problem.variables])

    def improved(self, choices: Sequence[int], byte_s: float = 0.0) -> tuple[int, ...]:
        """The plan that single changes lead to: at the price of a byte first, then within the budget."""
        state = _State(np.array(choices), self._own_s.copy())
        for v, neighbours in enumerate(self._neighbours):
            for each in neighbours:
                state.time_s[self._of(v)] += each.time_s[:, choices[each.variable]]
        self._descend(state, byte_s)
        if np.isfinite(self._budget_bytes) and self._save(state):
            self._spend(state)
        return tuple(state.plan.tolist())

    def _of(self, v: int) -> slice:
        """Where a variable's choices are among all."""
        first = int(self._first[v])
        return slice(first, first + self._problem.variables[v].choices)

    def _change(self, state: "_State", entry: int) -> list[int]:
        """Makes a choice, given by its place among all; gives its neighbours, whose costs that changes."""
        v = int(self._owner[entry])
        old, new = int(state.plan[v]), entry - int(self._first[v])
        for each in self._neighbours[v]:
            state.time_s[self._of(each.variable)] += each.time_s[new] - each.time_s[old]
        state.plan[v] = new
        return [v, *(each.variable for each in self._neighbours[v])]

    def _descend(self, state: "_State", byte_s: float) -> None:
        """Makes all changes that pay at a price of a byte, those that gain most first."""
        for _ in range(_MOST_ROUNDS):
            if self._deadline.is_over:
                return
            cost = state.time_s + byte_s * self._summed
            own = cost[self._first + state.plan]
            gain = own - np.minimum.reduceat(cost, self._first)
            better = np.flatnonzero(gain > _WORTH * np.abs(own))
            if not len(better):
                return
            changed: set[int] = set()
            for v in better[np.argsort(-gain[better], kind="stable")].tolist():
                if v not in changed:
                    changed.update(self._change(state, int(self._first[v] + cost[self._of(v)].argmin())))

    def _save(self, state: "_State") -> bool:
        """Saves the bytes above the budget where that costs fewest seconds a byte; whether the plan then fits."""
        most = max(1, int(_SAVED_AT_ONCE * len(state.plan)))
        for _ in range(len(self._own_s)):
            total, larger = self._sizes(state)
            excess = total - self._budget_bytes
            if excess <= 0:
                return True
            if self._deadline.is_over:
                return False
            lost = state.time_s - state.time_s[self._first + state.plan][self._owner]
            saved = np.minimum(np.maximum(-larger, 0.0), excess)
            # Where time is gained, too, the gain counts as if it were for a byte.
            with np.errstate(divide="ignore", invalid="ignore"):
                price = np.where(saved > 0, np.where(lost > 0, lost / saved, lost), np.inf)
            best_s = np.minimum.reduceat(price, self._first)
            order = np.argsort(best_s, kind="stable")[:most]
            order = order[np.isfinite(best_s[order])]
            if not len(order):
                return False
            changed: set[int] = set()
            for v in order.tolist():
                if v not in changed and excess > 0:
                    entry = int(self._first[v] + price[self._of(v)].argmin())
                    changed.update(self._change(state, entry))
                    excess -= saved[entry]
        return False

    def _spend(self, state: "_State") -> None:
        """Makes the changes that gain time and fit, the largest gain first."""
        for _ in range(len(self._own_s)):
            if self._deadline.is_over:
                return
            total, larger = self._sizes(state)
            own = state.time_s[self._first + state.plan][self._owner]
            gain = np.where(total + larger <= self._budget_bytes, own - state.time_s, 0.0)
            best = int(gain.argmax())
            if gain[best] <= _WORTH * abs(own[best]):
                return
            self._change(state, best)

    def _sizes(self, state: "_State") -> tuple[float, Array]:
        """A plan's bytes, and how many more it would take with each choice of each variable."""
        at = self._first + state.plan
        transient = self._transient[at]
        largest = int(transient.argmax())
        peak = transient[largest]
        others = np.full(len(at), peak)
        others[largest] = np.delete(transient, largest).max(initial=0.0)
        larger = self._summed - self._summed[at][self._owner]
        larger += np.maximum(self._transient, others[self._owner]) - peak
        return float(self._summed[at].sum() + peak), larger

    def forest_improved(self, choices: Sequence[int], start: int, byte_s: float) -> tuple[int, ...]:
        """The best plan at a price of a byte that differs only in the variables of one forest.

        Args:
            choices: The plan.
            start: The variable at which the forest begins to grow, breadth first.
            byte_s: The price of a byte, in seconds.
        """
        parents = self._forest(start)
        plan = list(choices)
        costs = {v: self._own_cost(v, plan, parents, byte_s) for v in parents}
        picked: dict[int, Index] = {}
        for v, edges in reversed(parents.items()):
            if not edges:
                continue
            table = sum((each.time_s for each in edges), costs[v][:, None])
            picked[v] = table.argmin(axis=0)
            costs[edges[0].variable] = costs[edges[0].variable] + table.min(axis=0)
        for v, edges in parents.items():
            plan[v] = int(picked[v][plan[edges[0].variable]]) if edges else int(costs[v].argmin())
        return tuple(plan)

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


class _State:
    """A plan while it is changed, and `time_s`: the seconds of each choice, with its edges to the others' choices."""

    def __init__(self, plan: Index, time_s: Array) -> None:
        self.plan, self.time_s = plan, time_s
