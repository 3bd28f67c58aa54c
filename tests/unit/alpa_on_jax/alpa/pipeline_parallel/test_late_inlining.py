"""Calls that are to be inlined are, before a program is cut into layers: values stay the same."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from alpa_on_jax.alpa.pipeline_parallel.late_inlining import inlined


@partial(jax.jit, inline=True)
def scaled(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    return x, y * 2, jnp.sin(x) + y


@partial(jax.jit, inline=True)
def nested(x: jax.Array, y: jax.Array) -> jax.Array:
    same, double, other = scaled(x, y)
    return same + double * other


def _twice(x: jax.Array, y: jax.Array) -> Any:
    first = scaled(x, y)
    return scaled(*first[:2]), nested(first[2], y), x


def _adam(x: jax.Array, y: jax.Array) -> Any:
    optimizer = optax.adam(1e-2)
    parameters = {"x": x, "y": y}
    updates, state = optimizer.update(parameters, optimizer.init(parameters), parameters)
    return optax.apply_updates(parameters, updates), state


@pytest.mark.parametrize("function", [nested, _twice, _adam])
def test_an_inlined_program_computes_the_same(function: Any) -> None:
    arguments = jnp.arange(4.0), jnp.ones(4)
    whole = jax.make_jaxpr(function)(*arguments)
    found = inlined(whole)
    assert found.jaxpr.invars == whole.jaxpr.invars
    assert not any(eqn.params.get("name") in ("scaled", "nested", "tree_bias_correction") for eqn in found.eqns)
    for one, other in zip(
        jax.core.eval_jaxpr(found.jaxpr, found.consts, *arguments), jax.tree.leaves(function(*arguments)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_call_that_is_not_to_be_inlined_stays() -> None:
    inner = jax.jit(lambda x: x + 1)
    whole = jax.make_jaxpr(lambda x: inner(x) * 2)(1.0)
    assert inlined(whole) is whole


def test_of_the_moments_of_adam_one_parameters_update_needs_its_own() -> None:
    found = inlined(jax.make_jaxpr(_adam)(jnp.arange(4.0), jnp.ones(4)))
    x, y = found.jaxpr.invars
    reached = {x}
    for eqn in found.eqns:
        if reached.intersection(each for each in eqn.invars if not hasattr(each, "val")):
            reached.update(eqn.outvars)
    # What is computed from x: its update and moments, and nothing of y.
    assert len(reached.intersection(found.jaxpr.outvars)) == 3
    assert y not in reached
