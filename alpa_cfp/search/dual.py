"""A lower bound on the time of all plans that fit, in memory linear in the problem: a price of a byte is looked for.

Takes a `SearchProblem` without excluded choices, a budget and an interval of transients; gives bounds, and plans that
are cheap by the bound's proof. At each price of a byte the least of seconds and priced bytes is bounded by messages
(messages.py), which are kept when the price changes; less the price of all bytes that there may be, that is a bound on
seconds (Lagrangian relaxation). Invariant: a bound is never above the true minimum, but for rounding.

Prices at which the plans by the bound's proof are too large and prices at which they fit bracket the best price. The
bracket is narrowed with few sweeps at each price, since plans are good enough for that long before the bound is.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from alpa_cfp.search.limits import Deadline
from alpa_cfp.search.messages import Messages
from alpa_cfp.search.problem import SearchProblem

# Sums of a few thousand terms are good to a tenth of it.
_ROUNDING = 1e-12
# Sweeps in both directions at one price: in the first stage, and at most.
_FEW, _MANY = 2, 32
# A stage ends when the bracket is as narrow as this, relative to the price; that of each next stage is so much smaller.
_NARROW, _NARROWER, _NARROWEST = 0.5, 8.0, 1e-6
# Stages go on until the bound rises by less than this share in one; the first ones count for nothing.
_PROGRESS, _FIRST_STAGES, _MOST_STAGES = 1e-5, 5, 16
# The first stage of a part of a part, and by how much its bracket is opened.
_STAGE_OF_PARTS, _OPENED = 2, 0.01
# How much more an end of a bracket is opened that was not found in the last stage.
_UNMOVED = 16.0
# A price that is as much smaller than a usual one is none.
_TINY = 1e-6


@dataclass(frozen=True, slots=True)
class Part:
    """All plans whose largest transient is at most `high` and each of which is charged for `low` at least.

    `ranges` are (variable, least, most): its choice takes more summed bytes than `least` and not more than `most`.
    `bound_s` is proved for them; it was `began_s` when this `stage` began, and `before_s` when the one before did. At
    the price `too_low`, in seconds a byte, plans by the bound's proof were too large, such as `large`; at `enough` they
    fitted, such as `small`. `moved` is which of the two was found in this stage.
    """

    low: float
    high: float
    bound_s: float = -math.inf
    before_s: float = -math.inf
    began_s: float = -math.inf
    stage: int = 0
    too_low: float = -1.0
    enough: float = math.inf
    large: tuple[int, ...] = ()
    small: tuple[int, ...] = ()
    ranges: tuple[tuple[int, float, float], ...] = ()
    moved: tuple[bool, bool] = (False, False)

    @property
    def is_settled(self) -> bool:
        """Whether more sweeps and other prices would hardly raise the bound."""
        progress = self.began_s - self.before_s > _PROGRESS * abs(self.bound_s)
        return self.bound_s == math.inf or self.stage >= _MOST_STAGES or (self.stage > _FIRST_STAGES and not progress)

    @property
    def sweeps(self) -> int:
        """How many to make at one price."""
        return min(_FEW << self.stage, _MANY)

    @property
    def price(self) -> float:
        """The best price, as far as it is known."""
        return max(self.too_low, 0.0) if math.isinf(self.enough) else self.enough

    def next_price(self, usual: float) -> float:
        """The price to try next."""
        if self.too_low < 0:
            return 0.0
        if math.isinf(self.enough):
            return 4 * self.too_low if self.too_low else usual
        return math.sqrt(self.too_low * self.enough) if self.too_low else self.enough / 8

    def after(self, price: float, bound_s: float, usual: float, *, fits: bool) -> "Part":
        """The part with what was found at a price."""
        part = replace(self, bound_s=max(bound_s, self.bound_s))
        part = replace(part, enough=price) if fits else replace(part, too_low=price)
        part = replace(part, moved=(self.moved[0] or not fits, self.moved[1] or fits))
        if part.too_low * _TINY > usual:  # no price makes plans small enough
            return replace(part, stage=_MOST_STAGES)
        narrow = max(_NARROW / _NARROWER**self.stage, _NARROWEST)
        if part.enough > max(part.too_low * (1 + narrow), _TINY * usual):
            return part
        return replace(part, stage=self.stage + 1, before_s=self.began_s, began_s=part.bound_s)._opened(narrow)

    def _opened(self, share: float) -> "Part":
        """The part with a wider bracket, since later messages may move the best price; wider where it has not moved."""
        low, high = (1 + (share if moved else _UNMOVED * share) for moved in self.moved)
        return replace(self, too_low=self.too_low / low, enough=self.enough * high, moved=(False, False))

    def with_transients(self, low: float, high: float) -> "Part":
        """The plans of this part with such transients."""
        return replace(self, low=low, high=high)._begun()

    def split(self, problem: SearchProblem, fitting: Sequence[int]) -> "tuple[Part, ...]":
        """The plans with fewer and with more bytes of one variable, that in which a small and a large plan differ most.

        Nothing if they do not differ. `fitting` is the best plan of all, which is small.
        """
        if not self.large:
            return ()
        least, most = np.full((2, len(fitting)), [[-math.inf], [math.inf]])
        for v, low, high in self.ranges:
            least[v], most[v] = max(low, least[v]), min(high, most[v])
        large, small = (
            np.array([v.summed_bytes[choice] for v, choice in zip(problem.variables, plan, strict=True)])
            for plan in (self.large, self.small or fitting)
        )
        inside = (large > least) & (large <= most) & (small > least) & (small <= most)
        differ = np.where(inside, np.abs(large - small), 0.0)
        v = int(differ.argmax())
        if not differ[v]:
            return ()
        middle = float(large[v] + small[v]) / 2
        ranges = (v, -math.inf, middle), (v, middle, math.inf)
        return tuple(replace(self, ranges=(*self.ranges, each))._begun() for each in ranges)

    def _begun(self) -> "Part":
        """A part of a part, of which only the bound and the bracket are known."""
        return replace(self, before_s=-math.inf, began_s=-math.inf, stage=_STAGE_OF_PARTS)._opened(_OPENED)


class Dual:
    """Bounds for one problem and budget (inf: any).

    Args:
        problem: The problem.
        budget_bytes: The most that a plan may take.
        offer: Is given each plan that is found, with the price of a byte at which it is cheap.
        deadline: After it `turn` returns what it has.
    """

    def __init__(
        self,
        problem: SearchProblem,
        budget_bytes: float,
        offer: Callable[[tuple[int, ...], float], None],
        deadline: Deadline,
    ) -> None:
        self._problem, self._budget_bytes, self._offer, self._deadline = problem, budget_bytes, offer, deadline
        self._messages = Messages(problem, deadline)
        self._counted = math.isfinite(budget_bytes)
        spread_s = sum(float(np.ptp(each.time_s)) for each in (*problem.variables, *problem.edges))
        spread_bytes = sum(float(np.ptp(v.summed_bytes)) for v in problem.variables)
        # A price at which bytes matter about as much as seconds.
        self._usual_s = (spread_s or 1.0) / (spread_bytes or 1.0)

    def turn(self, part: Part, enough_s: float) -> Part:
        """Makes sweeps at a part's next price, until the bound is `enough_s`; gives the part with what they prove."""
        price = part.next_price(self._usual_s)
        capacity = self._budget_bytes - part.low if self._counted else 0.0
        allowance, best = price * capacity, -math.inf
        allowed = [v.transient_bytes <= part.high for v in self._problem.variables]
        for v, least, most in part.ranges:
            summed = self._problem.variables[v].summed_bytes
            allowed[v] = allowed[v] & (summed > least) & (summed <= most)
        if not all(each.any() for each in allowed):
            return replace(part, bound_s=math.inf)
        prices = [
            np.where(each, v.time_s + price * v.summed_bytes, np.inf)
            for v, each in zip(self._problem.variables, allowed, strict=True)
        ]
        self._messages.reprice(prices)
        for _ in range(part.sweeps):
            found = max(self._messages.sweep(upward=upward) for upward in (True, False))
            best = max(best, found - allowance - _ROUNDING * (abs(found) + allowance))
            if best >= enough_s or self._deadline.is_over:
                break
        plans = [self._messages.decoded(upward=upward) for upward in (True, False)]
        for plan in plans:
            self._offer(plan, price)
        fits = not self._counted or self._problem.memory(plans[0]).summed <= capacity
        part = replace(part, small=plans[0]) if fits else replace(part, large=plans[0])
        return part.after(price, best, self._usual_s, fits=fits)
