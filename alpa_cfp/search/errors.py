"""The errors of a search: what failed, the numbers, the usual cause, what to do.

Takes the numbers of the failure; gives exceptions. Invariant: every error that a caller of `alpa_cfp.search` can cause
is a `SearchError`.
"""

from collections.abc import Mapping, Sequence

KINDS = ("state", "saved", "transient")

# Variables that a message names at most.
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
    """A search problem or an argument of the search that is not valid; the message names the table or argument."""


class NoPlanError(SearchError):
    """Every choice of some variable is excluded by an infinite time, whatever the budget.

    Fields: `names`, these variables; `why`, the known reasons by name.
    """

    def __init__(self, names: Sequence[str], why: Mapping[str, str] | None = None) -> None:
        self.names, self.why = tuple(names), dict(why or {})
        listed = [f"{name}{f' ({self.why[name]})' if self.why.get(name) else ''}" for name in self.names[:_NAMED]]
        more = f" and {len(self.names) - _NAMED} more" if len(self.names) > _NAMED else ""
        super().__init__(
            f"no plan exists: no strategy of {'; '.join(listed)}{more} can be run. All programs of such a block "
            "failed when they were profiled; the log has the reason of each. Once the cause is gone, plan with another "
            "database, or remove such profiles (alpa-cfp profiles prune --failed). CFPOption(costs='estimate') plans "
            "without running them."
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (NoPlanError, (self.names, self.why))


class MemoryBudgetError(SearchError):
    """No plan fits the memory budget.

    Fields: `least_bytes`, the memory of the plan that needs least; `budget_bytes`; `dominated_by`, the kind of memory
    (of `KINDS`) that takes most of it; `largest`, the name of the variable that takes most of that kind; `compiled`,
    the name of the least plan if `least_bytes` is what the compiler says of it, "" if that is predicted.
    """

    def __init__(
        self,
        least_bytes: int,
        budget_bytes: int,
        kind_bytes: tuple[int, int, int],
        largest: tuple[str, ...],
        compiled: str = "",
    ) -> None:
        """
        Args:
            least_bytes, budget_bytes, compiled: As the fields.
            kind_bytes: The least plan's bytes of each of `KINDS`.
            largest: For each of `KINDS` the variable that takes most of it.
        """
        self._arguments = (least_bytes, budget_bytes, kind_bytes, largest, compiled)
        self.compiled = compiled
        self.least_bytes = least_bytes
        self.budget_bytes = budget_bytes
        # The first of equals, so that the message is the same each time.
        dominant = max(range(len(KINDS)), key=lambda index: (kind_bytes[index], -index))
        self.dominated_by = KINDS[dominant]
        self.largest = largest[dominant]
        parts = ", ".join(f"{kind} {size:,}" for kind, size in zip(KINDS, kind_bytes, strict=True))
        source = f"That is what the compiler says of that plan ({compiled}). " if compiled else ""
        super().__init__(
            f"no plan fits: the one that needs least memory takes {least_bytes:,} bytes a device, the budget is "
            f"{budget_bytes:,} ({least_bytes - budget_bytes:,} too few). {source}Of these are {parts}; "
            f"{self.dominated_by} dominates, most of it in {self.largest}. What helps: {_KNOBS[self.dominated_by]}."
        )

    def __reduce__(self) -> tuple[object, ...]:
        # Ray sends errors between processes; the arguments are not the message.
        return (MemoryBudgetError, self._arguments)


def bad_table(table: str, what: str) -> InvalidProblemError:
    """The error for a table of a variable or edge; `what` is the reason, with what was expected."""
    return InvalidProblemError(f"{table} {what}")
