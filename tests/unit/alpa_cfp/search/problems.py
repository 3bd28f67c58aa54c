"""Small and larger search problems, and their answers by other means: enumeration and an integer programme.

Gives back hypothesis strategies of `SearchProblem`s whose times and bytes are small whole numbers (so that ties are
common and sums exact), a seeded generator of larger ones, and two independent solvers.
"""

import itertools
import math

import numpy as np
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from alpa_cfp.search import Edge, SearchProblem, Solution, Variable

SHAPES = ("chain", "chain with skips", "ring", "ladder", "hub", "tree", "clique", "any")


@st.composite
def problems(draw: st.DrawFn, shape: str | None = None) -> SearchProblem:
    """At most 5 variables of at most 4 choices; 1 of 8 choices is excluded."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return random_problem(
        rng, draw(st.integers(1, 5)), (1, 4), shape or draw(st.sampled_from(SHAPES)), draw(st.sampled_from([1, 4, 40]))
    )


def random_problem(
    rng: np.random.Generator, count: int, choices: tuple[int, int], shape: str, highest: int
) -> SearchProblem:
    """So many choices a variable (from, to); whole times and bytes up to `highest`, 1 of 8 choices is excluded."""
    sizes = rng.integers(choices[0], choices[1] + 1, count)

    def whole(*dims: int) -> np.ndarray:
        return rng.integers(0, highest + 1, dims)

    def times(n: int) -> np.ndarray:
        return np.where(rng.random(n) < 1 / 8, np.inf, whole(n))

    variables = [Variable(f"v{i}", times(n), whole(n), whole(n), whole(n)) for i, n in enumerate(sizes)]
    edges = [Edge(f"v{i}", f"v{j}", whole(sizes[i], sizes[j])) for i, j in _pairs(rng, count, shape)]
    return SearchProblem(tuple(variables), tuple(edges))


def _pairs(rng: np.random.Generator, count: int, shape: str) -> list[tuple[int, int]]:
    chain = [(i, i + 1) for i in range(count - 1)]
    every = [(i, j) for i in range(count) for j in range(count) if i != j]
    if shape == "chain":
        return chain
    if shape == "ring":
        return chain + [(0, count - 1)] * (count > 2)
    if shape == "ladder":
        return chain + [(i, count - 1 - i) for i in range((count - 1) // 2)]
    if shape == "hub":  # the last is joined to all others, which form a chain
        return chain[:-1] + [(i, count - 1) for i in range(count - 1)]
    if shape == "chain with skips":
        return chain + [(j, i) for i, j in itertools.combinations(range(count), 2) if rng.random() < 0.2]
    if shape == "tree":
        return [(int(rng.integers(0, i)), i) for i in range(1, count)]
    if shape == "clique":
        return list(itertools.combinations(range(count), 2))
    return [pair for pair in every if rng.random() < 0.3]


def plans(problem: SearchProblem) -> list[Solution]:
    """Every plan that is not excluded, by time and then by memory."""
    every = (problem.solution(choices) for choices in itertools.product(*(range(v.choices) for v in problem.variables)))
    return sorted((s for s in every if math.isfinite(s.time_s)), key=lambda s: (s.time_s, s.memory.total))


def budgets(problem: SearchProblem) -> list[int]:
    """Those at which the answer can change: each plan's memory, and a byte less."""
    return sorted({max(0, s.memory.total - less) for s in plans(problem) for less in (0, 1)})


def by_integer_programme(problem: SearchProblem, budget_bytes: int) -> float | None:
    """Least time by HiGHS: an indicator a choice and a pair, and the largest transient as a continuous variable."""
    offsets = np.cumsum([0, *(v.choices for v in problem.variables), *(e.time_s.size for e in problem.edges)])
    count, peak = int(offsets[-1]) + 1, int(offsets[-1])
    owners = [*problem.variables, *problem.edges]
    time = np.concatenate([owner.time_s.ravel() for owner in owners])
    summed = np.zeros(peak)
    summed[: offsets[len(problem.variables)]] = np.concatenate([v.summed_bytes for v in problem.variables])
    rows: list[np.ndarray] = []
    low: list[float] = []
    high: list[float] = []

    def constrain(row: np.ndarray, least: float, most: float) -> None:
        rows.append(row)
        low.append(least)
        high.append(most)

    for index, owner in enumerate(owners):
        at = slice(offsets[index], offsets[index + 1])
        row = np.zeros(count)
        row[at] = 1
        constrain(row, 1, 1)
        if isinstance(owner, Variable):
            row = np.zeros(count)  # one is chosen, so the sum is the chosen one's transient
            row[at], row[peak] = owner.transient_bytes, -1
            constrain(row, -np.inf, 0)
    for index, (edge, (first, second)) in enumerate(zip(problem.edges, problem.ends, strict=True)):
        start = offsets[len(problem.variables) + index]
        pair = np.arange(edge.time_s.size).reshape(edge.time_s.shape) + start
        for end, across in ((first, pair), (second, pair.T)):
            for choice, members in enumerate(across):
                row = np.zeros(count)
                row[members], row[offsets[end] + choice] = 1, -1
                constrain(row, 0, 0)
    row = np.zeros(count)
    row[:peak], row[peak] = summed, 1
    constrain(row, -np.inf, budget_bytes)
    allowed = np.isfinite(time)
    found = milp(
        np.append(np.where(allowed, time, 0), 0),
        integrality=np.append(np.ones(peak), 0),
        bounds=Bounds(0, np.append(allowed.astype(float), np.inf)),
        constraints=LinearConstraint(np.array(rows), low, high),
        options={"mip_rel_gap": 0.0},
    )
    return float(found.fun) if found.success else None
