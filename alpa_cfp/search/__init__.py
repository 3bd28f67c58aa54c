"""Search for the cheapest plans that fit in memory, exact where its tables fit in what it is given itself:
`search(problem, budget_bytes, best=k, time_limit_s=s, memory_limit_bytes=m)`.

Takes a `SearchProblem` (a `Variable` for each segment instance or boundary, `Edge`s between two of them); gives back
`Solution`s. Pure numpy. Invariant: what this package exports is its public surface.
"""

from alpa_cfp.search.errors import InvalidProblemError, MemoryBudgetError, NoPlanError, SearchError, TimeLimitError
from alpa_cfp.search.problem import Edge, MemoryUse, SearchProblem, Solution, Variable
from alpa_cfp.search.solver import MEMORY_BYTES, search

__all__ = [
    "MEMORY_BYTES",
    "Edge",
    "InvalidProblemError",
    "MemoryBudgetError",
    "MemoryUse",
    "NoPlanError",
    "SearchError",
    "SearchProblem",
    "Solution",
    "TimeLimitError",
    "Variable",
    "search",
]
