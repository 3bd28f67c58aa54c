"""Improves the best plan by searching the choices of a few variables exactly, with all others as they are.

Takes an `Incumbent` with a plan, and improves it. Invariants: plans only get better; without a time limit it ends, and
gives the same each time.

A neighbourhood is two connected groups of variables, since bytes that one group saves may be spent in another that is
far away. Their own problem has what is left of the budget, and edges to the others as costs of single choices. Which
are tried is drawn at random, from a fixed seed (large neighbourhood search: Shaw, "Using constraint programming and
local search methods to solve vehicle routing problems" (1998)).
"""

import math
from collections.abc import Sequence

import numpy as np

from alpa_cfp.search.exact import ExactSearch
from alpa_cfp.search.incumbent import SLACK, Incumbent
from alpa_cfp.search.limits import Deadline, Stopped
from alpa_cfp.search.problem import Edge, Neighbour, SearchProblem, Variable
from alpa_cfp.search.prune import prune
from alpa_cfp.search.tree import elimination_tree

# Groups of a neighbourhood, and the variables of each: at first, least and most.
_GROUPS, _SIZE, _LEAST, _MOST = 2, 5, 2, 16
# One search may hold so much, of what the whole search may, and takes so long at most.
_MEMORY_BYTES, _LIMIT_S = 2**22, 0.5
# Neighbourhoods without success in a row, for each variable, and in all.
_PER_VARIABLE, _MOST_TRIED = 4, 200


def improve_neighbourhoods(known: Incumbent, bound_s: float, deadline: Deadline) -> None:
    """Until the plan is proved to be the best, many neighbourhoods in a row hold nothing better, or at the deadline."""
    problem, rng = known.pruned.problem, np.random.default_rng(0)
    neighbours, count = problem.neighbours(), len(problem.variables)
    tried, unchanged, size = 0, 0, _SIZE
    while unchanged < min(_PER_VARIABLE * count, _MOST_TRIED) and tried < 4 * _MOST_TRIED:
        if deadline.is_over or known.is_proved(bound_s):
            return
        group = _drawn(neighbours, size, rng)
        before, tried = known.time_s, tried + 1
        finished = _search(known, group, neighbours, deadline)
        if not finished and size == _LEAST:
            return
        size = min(size + 1, _MOST) if finished else max(size // 2, _LEAST)
        unchanged = 0 if known.time_s < before * (1 - SLACK) else unchanged + 1


def _drawn(neighbours: Sequence[Sequence[Neighbour]], size: int, rng: np.random.Generator) -> list[int]:
    """The variables of a neighbourhood, ascending."""
    found: set[int] = set()
    for number in range(1, _GROUPS + 1):
        queue, seen = [int(rng.integers(len(neighbours)))], set[int]()
        for v in queue:
            if len(found) >= number * size:
                break
            if v not in seen:
                seen.add(v)
                found.add(v)
                queue += rng.permutation([each.variable for each in neighbours[v]]).tolist()
    return sorted(found)


def _search(
    known: Incumbent, group: Sequence[int], neighbours: Sequence[Sequence[Neighbour]], deadline: Deadline
) -> bool:
    """Searches a neighbourhood of the best plan; whether it was searched completely."""
    problem, plan = known.pruned.problem, list(known.choices)
    place = {v: index for index, v in enumerate(group)}
    others = [v for v in range(len(plan)) if v not in place]
    summed = sum(float(problem.variables[v].summed_bytes[plan[v]]) for v in others)
    peak = max((float(problem.variables[v].transient_bytes[plan[v]]) for v in others), default=0.0)
    variables, edges = [], []
    for v in group:
        own = problem.variables[v]
        time_s = own.time_s.copy()
        for each in neighbours[v]:
            if each.variable not in place:
                time_s += each.time_s[:, plan[each.variable]]
            elif each.variable > v:
                edges.append(Edge(own.name, problem.variables[each.variable].name, each.time_s))
        transient = np.maximum(own.transient_bytes, peak)
        variables.append(Variable(own.name, time_s, own.state_bytes, own.saved_bytes, transient))
    part = SearchProblem(tuple(variables), tuple(edges))
    limits = Deadline(
        min(_LIMIT_S, max(deadline.limit_s - deadline.passed_s, 0.0)) if math.isfinite(deadline.limit_s) else math.inf,
        min(_MEMORY_BYTES, deadline.memory_bytes),
    )
    counted = math.isfinite(known.budget_bytes)
    present = part.solution([plan[v] for v in group])
    inside = Incumbent(part, prune(part, limits, memory=counted), known.budget_bytes - summed, present)
    finished = True
    try:
        ExactSearch(elimination_tree(inside.pruned.problem, limits, memory=counted), inside, limits).run()
    except (Stopped, MemoryError):
        finished = False
    if inside.plan is not None and inside.plan is not present:
        for v, choice in zip(group, inside.plan.choices, strict=True):
            plan[v] = choice
        known.add(plan)
    return finished
