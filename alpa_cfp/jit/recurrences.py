"""Recurrences: loops over time steps, whose every step multiplies the state with the same weights.

Takes a jaxpr, or the equation of a `scan`; says whether its loops stay, and whether the loop is one. Its steps have to
follow each other, and their weights are the same: unrolled, there is little to plan that the loop, split along its
samples or its hidden dims (`analysis/loop_factors.py`), does not have, and the program is as many times as long. Only
where steps are tiny, what a loop takes to go round counts more. Layers in a scan are no recurrence: each has weights of
its own. Invariant: a loop that says itself what lies where is none either, since nothing is planned inside one.
"""

from collections.abc import Sequence
from typing import Any

from jax.extend import core

from alpa_cfp.jit.jaxprs import SCAN, all_equations, called
from alpa_cfp.jit.plannable import CONTRACTIONS, volume

# The multiplications of a step, from which on it takes as long as the loop takes to go round, on CPUs: some 0.1 ms with
# eight devices of two cores. Loops of smaller steps are faster if they are unrolled.
LEAST_VOLUME = 500_000

# What a program says about shardings.
_DECISIONS = frozenset({"sharding_constraint", "reshard", "shard_map", "mesh_cast"})
# What a value of a loop's body is computed from.
_WEIGHTS, _STATE, _SLICES = frozenset({"weights"}), frozenset({"state"}), frozenset({"slices"})


def are_worth_keeping(jaxpr: Any) -> bool:
    """Whether the recurrences of a program stay loops: the largest step of any is large enough."""
    steps = (eqn.params["jaxpr"].jaxpr for eqn in all_equations(jaxpr) if is_recurrence(eqn))
    return max((sum(map(volume, all_equations(step))) for step in steps), default=0) >= LEAST_VOLUME


def is_recurrence(eqn: Any) -> bool:
    """Whether an equation is a scan in which a contraction is of the state and of what all steps share."""
    if eqn.primitive.name != SCAN:
        return False
    closed, consts, carried = eqn.params["jaxpr"], eqn.params["num_consts"], eqn.params["num_carry"]
    if any(each.primitive.name in _DECISIONS for each in all_equations(closed.jaxpr)):
        return False
    slices = len(closed.jaxpr.invars) - consts - carried
    return _multiplies_state(closed.jaxpr, [_WEIGHTS] * consts + [_STATE] * carried + [_SLICES] * slices)[0]


def _multiplies_state(jaxpr: Any, sources: Sequence[frozenset[str]]) -> tuple[bool, list[frozenset[str]]]:
    """Whether a jaxpr has such a contraction, and what its results are computed from, given that of its parameters."""
    env: dict[Any, frozenset[str]] = dict(zip(jaxpr.invars, sources, strict=True))

    def read(atom: Any) -> frozenset[str]:
        return frozenset() if isinstance(atom, core.Literal) else env.get(atom, frozenset())

    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        if eqn.primitive.name in CONTRACTIONS and any(
            one == _WEIGHTS and other >= _STATE for one, other in (operands[:2], operands[1::-1])
        ):
            return True, []
        results = [frozenset[str]().union(*operands)] * len(eqn.outvars)
        inner = called(eqn)
        if inner is not None:
            found, results = _multiplies_state(inner[0], operands)
            if found:
                return True, []
        env.update(zip(eqn.outvars, results, strict=True))
    return False, [read(atom) for atom in jaxpr.outvars]
