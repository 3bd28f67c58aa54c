"""Recurrences: loops over time steps, whose every step multiplies the state with the same weights.

Takes a jaxpr, or the equation of a `scan`; says whether a loop is a recurrence, and whether those of a program are to
stay loops. Steps have to follow each other, and their weights are the same: unrolled, there is little to plan that the
loop, split along its samples or its hidden dims (`analysis/loop_factors.py`), does not have, and the program is as many
times as long. Only where steps are tiny, what a loop takes to go round counts more. Layers in a scan are no recurrence:
each has weights of its own. Invariant: a loop that says itself what lies where is none either, since nothing is planned
inside one. Layers that share their largest weight are not told apart from time steps.

Uses names of JAX's primitives and of their parameters, tested with 0.10.2, 0.11.2 and 0.12.0.1.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend import core
from jax.sharding import Sharding

from alpa_cfp.jit import explicit
from alpa_cfp.jit.jaxprs import SCAN, all_equations, called, scan_arguments
from alpa_cfp.jit.plannable import volume

# A step of fewer multiplications takes less time than the loop needs to go round once more: some 0.1 ms on eight CPU
# devices of two cores.
LEAST_PER_STEP = 500_000
# The share of the largest contraction of a step that one of state and weights has at least.
_MAJOR = 0.5
# What a program says about shardings, beside those of inner calls, and of all it does in Explicit mode.
_DECISIONS = frozenset({"sharding_constraint", "reshard", "shard_map", "mesh_cast"})
# What a value of a loop's body is computed from: what all steps share, what is carried on, and all else.
_WEIGHTS, _STATE, _OTHERS = frozenset({"weights"}), frozenset({"state"}), frozenset({"others"})


def are_worth_keeping(jaxpr: Any) -> bool:
    """Whether the recurrences of a program stay loops: the largest step of any is large enough."""
    steps = (eqn.params["jaxpr"].jaxpr for eqn in scans(jaxpr) if is_recurrence(eqn))
    return max((sum(map(volume, all_equations(step))) for step in steps), default=0) >= LEAST_PER_STEP


def is_recurrence(eqn: Any) -> bool:
    """Whether a scan has a contraction of the state and of what all steps share that is among its large ones."""
    if says_what_lies_where(eqn):
        return False
    body = eqn.params["jaxpr"].jaxpr
    consts, carried, slices = scan_arguments(eqn.params, list(body.invars))
    # Numbers of steps and random keys are no state.
    state = [_STATE if jnp.issubdtype(var.aval.dtype, jnp.inexact) else _OTHERS for var in carried]
    shared, _ = _state_by_weights(body, [_WEIGHTS] * len(consts) + state + [_OTHERS] * len(slices))
    return shared > 0 and shared >= _MAJOR * max(map(volume, all_equations(body)))


def says_what_lies_where(eqn: Any) -> bool:
    """Whether an equation, or one that is inside it, says something about shardings."""
    return _is_decision(eqn) or any(
        _is_decision(each) for inner in core.jaxprs_in_params(eqn.params) for each in all_equations(inner)
    )


def scans(jaxpr: Any) -> Iterator[Any]:
    """Yields the scans of a jaxpr, also those inside others."""
    return (eqn for eqn in all_equations(jaxpr) if eqn.primitive.name == SCAN)


def _is_decision(eqn: Any) -> bool:
    asked = (each for name in ("in_shardings", "out_shardings") for each in eqn.params.get(name) or ())
    return (
        eqn.primitive.name in _DECISIONS
        or any(explicit.is_explicit_type(var.aval) for var in eqn.outvars)
        or any(isinstance(each, Sharding) for each in asked)
    )


def _state_by_weights(jaxpr: Any, sources: Sequence[frozenset[str]]) -> tuple[int, list[frozenset[str]]]:
    """The multiplications of the largest contraction of state and weights, and what results are computed from.

    Args:
        jaxpr: A loop's body, or what it calls.
        sources: What its parameters are computed from.
    """
    env: dict[Any, frozenset[str]] = dict.fromkeys(jaxpr.constvars, _WEIGHTS)
    env.update(zip(jaxpr.invars, sources, strict=True))

    def read(atom: Any) -> frozenset[str]:
        return frozenset() if isinstance(atom, core.Literal) else env[atom]

    largest = 0
    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        results = [frozenset[str]().union(*operands)] * len(eqn.outvars)
        if volume(eqn):
            pairs = operands[:2], operands[1::-1]
            if any(one == _WEIGHTS and other >= _STATE for one, other in pairs):
                largest = max(largest, volume(eqn))
        inner = called(eqn)
        if inner is not None:
            found, results = _state_by_weights(inner[0], operands)
            largest = max(largest, found)
        env.update(zip(eqn.outvars, results, strict=True))
    return largest, [read(atom) for atom in jaxpr.outvars]
