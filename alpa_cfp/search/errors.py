"""What goes wrong in a search, worded once: what failed, the numbers, the usual cause, what to do.

Takes the numbers of the failure and gives back exceptions. Invariant: every error that a caller of `alpa_cfp.search`
can cause is one of these; no other module of the package words one.
"""

from collections.abc import Mapping, Sequence

KINDS = ("state", "saved", "transient")

# So many variables are named.
_NAMED = 3
_KNOBS = {
    "state": "more devices (parameters and optimizer state are then split further), strategies that keep state sharded "
    "(ZeRO-2, ZeRO-3), or a larger budget",
    "saved": "more micro-batches (each saves less), rematerialisation, more devices, or a larger budget",
    "transient": "more micro-batches (temporaries shrink with the batch), more devices, or a larger budget",
}


class SearchError(ValueError):
    """Anything that `alpa_cfp.search` refuses."""


class InvalidProblemError(SearchError):
    """A search problem whose tables do not fit together; the message names the table."""


class NoPlanError(SearchError):
    """Infinite times exclude every plan, whatever the budget.

    Fields: `names`, the variables of which every choice is excluded; none where only pairs of choices exclude all.
    """

    def __init__(self, names: Sequence[str] = (), why: Mapping[str, str] | None = None) -> None:
        """
        Args:
            names: The variables of which every choice is excluded.
            why: What is known of the reason, for each of them.
        """
        self.names, self.why = tuple(names), dict(why or {})
        said = [f"{name}{f' ({self.why[name]})' if self.why.get(name) else ''}" for name in self.names[:_NAMED]]
        more = f" and {len(self.names) - _NAMED} more" if len(self.names) > _NAMED else ""
        super().__init__(
            "no plan exists: every combination of choices contains an excluded (infinite-time) one. "
            + (
                f"No strategy can be run of {'; '.join(said)}{more}: every program of a block failed when it was "
                "profiled. The log says why of each; once the cause is gone, plan with another database, or remove "
                "such profiles (alpa-cfp profiles prune --failed). CFPOption(costs='estimate') plans without running "
                "them."
                if said
                else "Each variable has choices that are not, but no two that go together of some two that are joined."
            )
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (NoPlanError, (self.names, self.why))


class MemoryBudgetError(SearchError):
    """No plan fits the memory budget.

    Fields: `least_bytes`, what the plan that needs least memory takes (exact); `budget_bytes`; `dominated_by`, the kind
    of memory (of `KINDS`) that takes most of it; `largest`, the name of the variable or edge that takes most of that
    kind.
    """

    def __init__(self, least_bytes: int, budget_bytes: int, kind_bytes: tuple[int, int, int], largest: tuple[str, ...]):
        self.least_bytes = least_bytes
        self.budget_bytes = budget_bytes
        # The first of equals, so that the message is the same each time.
        dominant = max(range(len(KINDS)), key=lambda index: (kind_bytes[index], -index))
        self.dominated_by = KINDS[dominant]
        self.largest = largest[dominant]
        parts = ", ".join(f"{kind} {size:,}" for kind, size in zip(KINDS, kind_bytes, strict=True))
        super().__init__(
            f"no plan fits: the one that needs least memory takes {least_bytes:,} bytes a device, the budget is "
            f"{budget_bytes:,} ({least_bytes - budget_bytes:,} too few). Of these are {parts}; {self.dominated_by} "
            f"dominates, most of it in {self.largest}. What helps: {_KNOBS[self.dominated_by]}."
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (_restore, (self.args, self.__dict__.copy()))


class TimeLimitError(SearchError):
    """The limit of time or memory was met before any plan that fits was; it is not known whether there is one."""

    def __init__(self, passed_s: float, budget_bytes: int | None) -> None:
        within = "" if budget_bytes is None else f" within {budget_bytes:,} bytes"
        super().__init__(
            f"no plan{within} was found in {passed_s:.1f} s, and none was proved not to exist. The budget is probably "
            "close to the least that any plan takes. What helps: a longer time limit (CFPOption(search_limit_s=...)), "
            "more memory for the search (CFPOption(search_memory_bytes=...)), a larger budget, or fewer strategies."
        )
        self._given = (passed_s, budget_bytes)

    def __reduce__(self) -> tuple[object, ...]:
        return (TimeLimitError, self._given)


def _restore(args: tuple[str, ...], fields: dict[str, object]) -> MemoryBudgetError:
    """Unpickles a `MemoryBudgetError`, whose arguments are not its message (Ray sends errors between processes)."""
    error = MemoryBudgetError.__new__(MemoryBudgetError)
    error.args = args
    error.__dict__.update(fields)
    return error


def bad_table(owner: str, table: str, what: str) -> InvalidProblemError:
    """A table of a variable or edge that cannot be used; `what` says why and what was expected."""
    return InvalidProblemError(f"{owner}: {table} {what}")


def bad_problem(what: str) -> InvalidProblemError:
    """A problem whose parts are fine and do not fit together, or that is asked for something senseless."""
    return InvalidProblemError(what)
