"""The search: exact where that can be afforded, and a plan with a bound otherwise.

Takes a `SearchProblem`, a budget in bytes and limits of time and memory; gives a plan. Invariants: there is always a
plan if any fits; the same input gives the same plan, unless the time limit was met; no plan that fits is faster, or, if
a limit was met, none is faster by more than `Solution.gap_s`.

Choices that the best plan does not need are left out first (prune.py). Then simple plans are improved. The exact search
comes next: without a budget one pass of bounds, which is the dynamic programme then (bounds.py), and else exact.py; the
memory that it needs is computed before it is allocated (limits.py). If that is more than the limit, or its share of the
time is over, plans and a bound are those of approximate.py. If a single pass of bounds takes long, approximate.py comes
first.
"""

import logging
import math
from dataclasses import replace

import numpy as np

from alpa_cfp.search.approximate import approximate, begin, trivial_bound_s
from alpa_cfp.search.bounds import fastest_choices
from alpa_cfp.search.errors import InvalidProblemError, MemoryBudgetError, NoPlanError
from alpa_cfp.search.exact import ExactSearch
from alpa_cfp.search.incumbent import SLACK, Incumbent
from alpa_cfp.search.limits import MEMORY_BYTES, Deadline, OutOfSpace, OutOfTime, Stopped, work
from alpa_cfp.search.problem import SearchProblem, Solution
from alpa_cfp.search.prune import prune
from alpa_cfp.search.tree import elimination_tree

_LOG = logging.getLogger(__name__)
# Of the time: what leaving out choices may take, and what the exact search may take before approximate.py has its turn.
_PRUNE_SHARE, _EXACT_SHARE = 0.1, 0.5
# If one pass of bounds visits more entries than this (a second or so), the exact search may meet its time limit without
# a good plan: then approximate.py gets this share of the time first.
_HEAVY, _FIRST_SHARE = 10**8, 0.5


def search(
    problem: SearchProblem,
    budget_bytes: int | None,
    *,
    time_limit_s: float = math.inf,
    memory_limit_bytes: int = MEMORY_BYTES,
    enough: float = 0.0,
    thorough: bool = True,
) -> Solution:
    """Finds the cheapest plan whose memory is at most `budget_bytes` (None: any).

    With a budget, of plans of equal time one of least memory is taken; which of several that are equal in both is
    arbitrary, and the same each time. Times closer than rounding (1e-12 of the total) count as equal.

    After `time_limit_s` seconds, or where the exact search would hold more than `memory_limit_bytes` beside the problem
    and what is linear in it, the result is the best plan so far, or that of approximate.py. A warning then says by how
    much at most it could be beaten (`Solution.gap_s`; 0 if it was proved to be the best). Where the exact search does
    not fit, a plan that is proved to be slower than the best by at most the share `enough` ends the search early; so
    does the result of approximate.py, however good it is, where a single pass of bounds takes long and the search is
    not to be `thorough`.

    Raises:
        NoPlanError: A variable has excluded choices only.
        MemoryBudgetError: No plan fits.
        InvalidProblemError: A budget or limit is negative, or `enough` is.
    """
    if budget_bytes is not None and budget_bytes < 0:
        raise InvalidProblemError(f"budget_bytes={budget_bytes}: a budget is not negative; None means no limit")
    if not time_limit_s >= 0:
        raise InvalidProblemError(f"time_limit_s={time_limit_s}: a time limit is not negative")
    if memory_limit_bytes < 0:
        raise InvalidProblemError(f"memory_limit_bytes={memory_limit_bytes}: a limit is not negative")
    if not enough >= 0:
        raise InvalidProblemError(f"enough={enough}: a share is not negative")
    if not problem.variables:
        return problem.solution(())
    hopeless = tuple(variable.name for variable in problem.variables if not np.isfinite(variable.time_s).any())
    if hopeless:
        raise NoPlanError(hopeless)
    deadline = Deadline(time_limit_s, memory_limit_bytes)
    counted = budget_bytes is not None
    pruned = prune(problem, deadline.part(_PRUNE_SHARE), memory=counted)
    if counted:
        _check_budget(problem, pruned.given(pruned.problem.leanest()), budget_bytes)
    known = Incumbent(problem, pruned, float(budget_bytes) if counted else math.inf, enough=enough)
    # Not used by the exact search, whose result must not depend on whether there is a limit.
    spare = replace(known)
    bound_s, stopped, run = trivial_bound_s(pruned.problem), None, None
    try:
        begin(spare, deadline)
        deadline.check()
        tree = elimination_tree(pruned.problem, deadline.part(_EXACT_SHARE), memory=counted)
        if is_heavy := work(tree) > _HEAVY and (math.isfinite(time_limit_s) or not thorough):
            bound_s = approximate(spare, deadline.part(_FIRST_SHARE), bound_s)
            known.add(spare.choices)
        if not is_heavy or (thorough and not known.is_proved(bound_s)):
            its_deadline = deadline if is_heavy else deadline.part(_EXACT_SHARE)
            if counted:
                run = ExactSearch(tree, known, its_deadline)
                run.run()
            else:
                known.add(fastest_choices(tree, its_deadline))
            bound_s = math.inf
    except (Stopped, MemoryError) as error:
        stopped = error
    if stopped is not None:
        if run is not None:
            bound_s = max(bound_s, run.proved_s)
        if known.plan is not None:
            spare.add(known.choices)
        if not deadline.is_over:
            bound_s = approximate(spare, deadline, bound_s)
        known = spare
    plan = known.plan
    assert plan is not None  # that of least memory fits
    gap_s = plan.time_s - bound_s
    plan = replace(plan, gap_s=gap_s if gap_s > SLACK * abs(plan.time_s) else 0.0)
    _LOG.info(
        "search: %d variables in %.3f s (%d of %d choices, %d cases, %d runs, largest frontier %d)",
        len(problem.variables),
        deadline.passed_s,
        sum(variable.choices for variable in pruned.problem.variables),
        sum(variable.choices for variable in problem.variables),
        0 if run is None else len(run.tree.cases),
        0 if run is None else run.runs,
        0 if run is None else run.largest,
    )
    if stopped is not None:
        _LOG.log(
            logging.WARNING if plan.gap_s else logging.INFO,
            "search: stopped after %.1f s%s; the best takes %.6g s and could be beaten by at most %.3g s (%.3g%%)",
            deadline.passed_s,
            _why(stopped, memory_limit_bytes),
            plan.time_s,
            plan.gap_s,
            100 * plan.gap_s / abs(plan.time_s) if plan.time_s else math.inf,
        )
    return plan


def _check_budget(problem: SearchProblem, leanest: tuple[int, ...], budget_bytes: int) -> None:
    """Raises MemoryBudgetError if even the plan of least memory does not fit."""
    memory = problem.memory(leanest)
    if memory.total > budget_bytes:
        parts = (memory.state, memory.saved, memory.transient)
        raise MemoryBudgetError(memory.total, budget_bytes, parts, problem.largest(leanest))


def _why(stopped: BaseException, limit_bytes: int) -> str:
    """The reason why a search stopped, if that was not the time limit."""
    if isinstance(stopped, OutOfTime):
        return ""
    size = "more memory than there is"
    if isinstance(stopped, OutOfSpace) and math.isfinite(stopped.size_bytes):
        size = f"{stopped.size_bytes:.3g} bytes"
    return f", because the exact search needs {size}, where {limit_bytes:,} are allowed"
