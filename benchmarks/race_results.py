"""Ratios from the results of `benchmarks.cfp_race`: CFP's step time divided by that of another method.

Takes rows as `cfp_race` writes them; gives ratios and the method that does best beside CFP. Invariants: the best method
is chosen by other rounds than those that are quoted; nothing here imports jax.
"""

import math
from collections.abc import Iterable
from typing import Any

from alpa_cfp_bench.case import CFP, ILP_AGAIN
from benchmarks.reports import Row

# What is no other method: its step is that of Alpa's ILP, and says what a ratio is worth.
_CONTROLS = (CFP, ILP_AGAIN)
_QUOTED, _CHOOSING = "cfp_ratio", "cfp_ratio_of_other_rounds"


def cfp_by(row: Row, method: str) -> float:
    """How many times longer CFP's step takes than that of a method; 1 where they are the same program."""
    return _by(row["methods"][method], _QUOTED)


def best_other(row: Row) -> str:
    """The method beside CFP by which CFP does worst: the fastest of several in some rounds was also lucky in them."""
    others = {name: method for name, method in row["methods"].items() if name not in _CONTROLS}
    return max(others, key=lambda name: _by(others[name], _CHOOSING))


def geometric_mean(ratios: Iterable[float]) -> float:
    """The geometric mean of some ratios."""
    logarithms = list(map(math.log, ratios))
    return math.exp(sum(logarithms) / len(logarithms))


def _by(method: dict[str, Any], which: str) -> float:
    return 1.0 if method["same_program"] else method[which]["paired"]
