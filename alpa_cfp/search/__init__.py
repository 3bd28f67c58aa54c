"""Search for the cheapest plan that fits in memory: `search(problem, budget_bytes, time_limit_s=s,
memory_limit_bytes=m)`. It is exact unless it meets one of its own limits of time and memory.

Takes a `SearchProblem`: a `Variable` for each block, and an `Edge` for each two blocks that exchange values. Gives a
`Solution`. Needs numpy alone. Invariant: what this package exports is its public surface.
"""

from alpa_cfp.search.errors import InvalidProblemError, MemoryBudgetError, NoPlanError, SearchError
from alpa_cfp.search.limits import MEMORY_BYTES
from alpa_cfp.search.problem import ClassTable, Edge, MemoryUse, SearchProblem, Solution, Variable
from alpa_cfp.search.solver import search

__all__ = [
    "MEMORY_BYTES",
    "ClassTable",
    "Edge",
    "InvalidProblemError",
    "MemoryBudgetError",
    "MemoryUse",
    "NoPlanError",
    "SearchError",
    "SearchProblem",
    "Solution",
    "Variable",
    "search",
]
