"""What the planner had to do without, or took in the place of what it wanted.

Takes sentences from whoever falls back on something; gives those of a plan, for its account. Invariants: nothing is
taken silently: each sentence is logged when it is first said, as a warning where the plan may be worse for it; equal
profiles give equal sentences, so no sentence says how long anything took.
"""

import logging
from collections.abc import Iterable

from alpa_cfp.plan.plan_report import Caveat

logger = logging.getLogger(__name__)


class Caveats:
    """Those of one plan, each once, in the order in which they came up.

    Args:
        before: What was said before, and is logged already.
    """

    def __init__(self, before: Iterable[Caveat] = ()) -> None:
        self._said = dict.fromkeys(before)

    def warn(self, text: str) -> None:
        """The plan may be worse for it."""
        self._say(Caveat(text, may_cost=True))

    def note(self, text: str) -> None:
        """It hardly matters, but explains what is not in the plan."""
        self._say(Caveat(text, may_cost=False))

    def _say(self, caveat: Caveat) -> None:
        if caveat not in self._said:
            self._said[caveat] = None
            logger.log(logging.WARNING if caveat.may_cost else logging.INFO, "CFP: %s", caveat.text)

    @property
    def all(self) -> tuple[Caveat, ...]:
        """Those that may cost something first."""
        return tuple(sorted(self._said, key=lambda caveat: not caveat.may_cost))
