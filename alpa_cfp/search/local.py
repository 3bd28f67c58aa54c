"""Plans from plans: one choice, or those of many variables that form a forest, changed for the better at a time.

Takes a `SearchProblem`, a budget and plans to begin with; gives plans from which no single change leads to a better
one. Invariant: what is given back is never worse than what was given. One plan is *better* than another if fewer
excluded choices are in it, then if it exceeds the budget by less, then if it is faster.

Of all other variables the choices stay as they are while a forest of variables is improved, which takes one pass over
it (conditioning: Pearl, "Probabilistic Reasoning in Intelligent Systems" (1988), 4.3.2). All that is held is linear in
the tables of the problem.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from alpa_cfp.search.deadline import Deadline
from alpa_cfp.search.problem import Array, SearchProblem

# Sweeps over all variables end on their own; rounding must not make them go on for ever.
_MOST_SWEEPS = 100
# A change that gains less, relative to the whole time, is none.
_WORTH = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class _Facing:
    """An edge as one of its variables sees it: tables are [own choice, the neighbour's]."""

    edge: int
    neighbour: int
    time_s: Array
    state_bytes: Array
    transient_bytes: Array


@dataclass(frozen=True, slots=True, order=True)
class Value:
    """What is better about a plan, in this order."""

    excluded: float
    excess_bytes: float
    time_s: float


class Local:
    """Improves plans of one problem within one budget (inf: any).

    Args:
        problem: The problem.
        budget_bytes: What a plan may take.
        deadline: When to give back what there is.
    """

    def __init__(self, problem: SearchProblem, budget_bytes: float, deadline: Deadline) -> None:
        self._problem, self._budget_bytes, self._deadline = problem, budget_bytes, deadline
        self._counts = bool(np.isfinite(budget_bytes))
        self._around: list[list[_Facing]] = [[] for _ in problem.variables]
        for number, (edge, (first, second)) in enumerate(zip(problem.edges, problem.ends, strict=True)):
            tables = edge.time_s, edge.state_bytes, edge.transient_bytes
            self._around[first].append(_Facing(number, second, *tables))
            self._around[second].append(_Facing(number, first, *(table.T for table in tables)))

    def value(self, choices: Sequence[int]) -> Value:
        """How good a plan is."""
        problem = self._problem
        times = [float(v.time_s[c]) for v, c in zip(problem.variables, choices, strict=True)]
        times += [
            float(e.time_s[choices[i], choices[j]]) for e, (i, j) in zip(problem.edges, problem.ends, strict=True)
        ]
        excess = max(0.0, problem.memory(choices).total - self._budget_bytes) if self._counts else 0.0
        finite = [time for time in times if np.isfinite(time)]
        return Value(len(times) - len(finite), excess, sum(finite))

    def improved(self, choices: Sequence[int]) -> tuple[int, ...]:
        """A plan from which no single change leads to a better one, or the best so far once it is time."""
        plan = list(choices)
        memory = _Memory(self._problem, plan) if self._counts else None
        stays = 0
        for _ in range(_MOST_SWEEPS):
            for v, facing in enumerate(self._around):
                if self._deadline.is_over:
                    return tuple(plan)
                stays += 1
                if (best := self._best_choice(v, facing, plan, memory)) != plan[v]:
                    plan[v], stays = best, 0
                    if memory is not None:
                        memory.moved(v, facing, plan)
                if stays > len(plan):
                    return tuple(plan)
        return tuple(plan)

    def _best_choice(self, v: int, facing: Sequence[_Facing], plan: Sequence[int], memory: "_Memory | None") -> int:
        """The best choice of a variable where all others are as they are; its own where none is better."""
        variable = self._problem.variables[v]
        times = [variable.time_s, *(each.time_s[:, plan[each.neighbour]] for each in facing)]
        total = np.sum(times, axis=0)
        excluded = np.zeros(len(total))
        if not np.isfinite(total).all():
            excluded = np.sum([~np.isfinite(time) for time in times], axis=0).astype(float)
            total = np.sum([np.where(np.isfinite(time), time, 0.0) for time in times], axis=0)
        excess = np.zeros(len(total))
        if memory is not None:
            excess = np.maximum(memory.of_choices(v, facing, plan) - self._budget_bytes, 0.0)
        best = int(np.lexsort((total, excess, excluded))[0])
        own = plan[v]
        gain = (excluded[own] - excluded[best], excess[own] - excess[best], total[own] - total[best])
        return best if gain > (0.0, 0.0, _WORTH * abs(total[own])) else own

    def forest_improved(self, choices: Sequence[int], start: int, byte_s: float) -> tuple[int, ...]:
        """The plan that is best where the variables of one forest may change, if it is better than the given one.

        Args:
            choices: The plan.
            start: With which variable the forest begins to grow, by breadth.
            byte_s: What a byte counts, in seconds.
        """
        parents = self._forest(start)
        plan = list(choices)
        costs: dict[int, Array] = {}
        for v in parents:
            costs[v] = _finite(self._own_cost(v, plan, parents, byte_s))
        picked: dict[int, np.ndarray] = {}
        for v, edges in reversed(parents.items()):
            if not edges:
                continue
            table = sum((_finite(each.time_s + byte_s * each.state_bytes) for each in edges), costs[v][:, None])
            picked[v] = table.argmin(axis=0)
            costs[edges[0].neighbour] = costs[edges[0].neighbour] + table.min(axis=0)
        for v, edges in parents.items():
            plan[v] = int(picked[v][plan[edges[0].neighbour]]) if edges else int(costs[v].argmin())
        return tuple(plan) if self.value(plan) < self.value(choices) else tuple(choices)

    def _own_cost(self, v: int, plan: Sequence[int], forest: dict[int, list[_Facing]], byte_s: float) -> Array:
        """What a variable's choices cost beside the edges of the forest."""
        variable = self._problem.variables[v]
        cost = variable.time_s + byte_s * (variable.state_bytes + variable.saved_bytes)
        for each in self._around[v]:
            if each.neighbour not in forest:
                at = plan[each.neighbour]
                cost = cost + each.time_s[:, at] + byte_s * each.state_bytes[:, at]
        return cost

    def _forest(self, start: int) -> dict[int, list[_Facing]]:
        """Variables no two of which are joined but by the edges to their parents, parents first; with those edges."""
        found: dict[int, list[_Facing]] = {}
        for root in self._from(start):
            queue = [root]
            for v in queue:
                if v in found:
                    continue
                inside = [each for each in self._around[v] if each.neighbour in found]
                if len({each.neighbour for each in inside}) > 1 or (inside and v == root):
                    continue
                found[v] = inside
                queue += [each.neighbour for each in self._around[v] if each.neighbour not in found]
        return found

    def _from(self, start: int) -> Iterator[int]:
        count = len(self._problem.variables)
        return ((start + offset) % count for offset in range(count))


class _Memory:
    """A plan's bytes, kept up to date while choices change."""

    def __init__(self, problem: SearchProblem, plan: Sequence[int]) -> None:
        self._problem = problem
        used = problem.memory(plan)
        self._summed = float(used.state + used.saved)
        own = [float(v.transient_bytes[c]) for v, c in zip(problem.variables, plan, strict=True)]
        pairs = zip(problem.edges, problem.ends, strict=True)
        between = [float(edge.transient_bytes[plan[i], plan[j]]) for edge, (i, j) in pairs]
        self._transient = np.array(own + between)
        self._plan = list(plan)

    def of_choices(self, v: int, facing: Sequence[_Facing], plan: Sequence[int]) -> Array:
        """The bytes of the whole plan with each choice of a variable."""
        variable = self._problem.variables[v]
        summed = variable.state_bytes + variable.saved_bytes
        transient = variable.transient_bytes
        for each in facing:
            at = plan[each.neighbour]
            summed = summed + each.state_bytes[:, at]
            transient = np.maximum(transient, each.transient_bytes[:, at])
        rest = self._transient.copy()
        rest[self._touched(v, facing)] = 0.0
        return self._summed + summed - summed[plan[v]] + np.maximum(transient, rest.max())

    def moved(self, v: int, facing: Sequence[_Facing], plan: Sequence[int]) -> None:
        """A variable has another choice now."""
        variable, old, new = self._problem.variables[v], self._plan[v], plan[v]
        own = variable.state_bytes + variable.saved_bytes
        self._summed += float(own[new] - own[old])
        self._transient[v] = variable.transient_bytes[new]
        for each in facing:
            at = plan[each.neighbour]
            self._summed += float(each.state_bytes[new, at] - each.state_bytes[old, at])
            self._transient[len(self._plan) + each.edge] = each.transient_bytes[new, at]
        self._plan[v] = new

    def _touched(self, v: int, facing: Sequence[_Facing]) -> list[int]:
        return [v, *(len(self._plan) + each.edge for each in facing)]


def _finite(cost: Array) -> Array:
    """`cost` with what is excluded as dear as a hundred times all that is not, which sums can be made of."""
    allowed = np.isfinite(cost)
    if allowed.all():
        return cost
    return np.where(allowed, cost, 100 * (1 + np.abs(cost[allowed]).sum()))
