"""Collects the fallbacks and omissions of a planner, for the log and for the plan report.

Invariants: there is no silent fallback: each caveat is logged when it is first added, as a warning if the plan may be
worse because of it; equal profiles give equal caveats, so no caveat contains a duration.
"""

import logging
from collections.abc import Iterable

from alpa_cfp.plan.plan_report import Caveat

logger = logging.getLogger(__name__)


class Caveats:
    """The caveats of one plan, without repetition.

    Args:
        before: Caveats that are logged already.
    """

    def __init__(self, before: Iterable[Caveat] = ()) -> None:
        self._found = dict.fromkeys(before)

    def warn(self, text: str) -> None:
        """Adds a caveat because of which the plan may be worse."""
        self._add(Caveat(text, may_cost=True))

    def note(self, text: str) -> None:
        """Adds a caveat that hardly matters, but explains something that the plan lacks."""
        self._add(Caveat(text, may_cost=False))

    def _add(self, caveat: Caveat) -> None:
        if caveat not in self._found:
            self._found[caveat] = None
            logger.log(logging.WARNING if caveat.may_cost else logging.INFO, "CFP: %s", caveat.text)

    @property
    def all(self) -> tuple[Caveat, ...]:
        """The caveats, those that may cost something first."""
        return tuple(sorted(self._found, key=lambda caveat: not caveat.may_cost))
