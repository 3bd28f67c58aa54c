"""Whole programs that reduce over the batch by what no collective makes, or in small integers and booleans."""

from collections.abc import Callable
from typing import Any

import alpa
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from integration.planned import ESTIMATE, DrawnPlan, planned_function

_RNG = np.random.default_rng(0)
X = _RNG.normal(size=(64, 32)).astype(np.float32)
W = _RNG.normal(size=(32, 16)).astype(np.float32)

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "logaddexp": lambda y: lax.reduce(jnp.tanh(y), np.float32(-np.inf), jnp.logaddexp, (0,)),
    "xor": lambda y: lax.reduce((y * 100).astype(jnp.int32), np.int32(0), lax.bitwise_xor, (0,)),
    "and": lambda y: lax.reduce((y * 100).astype(jnp.int32), np.int32(-1), lax.bitwise_and, (0,)),
    "int8": lambda y: jnp.sum(y.astype(jnp.int8), 0, dtype=jnp.int8),
    "prod": lambda y: jnp.prod(1 + y / 100, 0),
    "any": lambda y: jnp.any(y > 10, 0),
    "all": lambda y: jnp.all(y > -20, 0),
}
OPTIONS = {
    "cfp": ESTIMATE,
    "ilp": alpa.AutoShardingOption(),
    "drawn": DrawnPlan(seed=1),
    "drawn again": DrawnPlan(seed=2),
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("mesh", ["1x8", "2x2"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_reduction_over_the_batch_equals_the_serial_one(name: str, mesh: str, option: str) -> None:
    def function(x: Any, w: Any) -> Any:
        return FUNCTIONS[name](x @ w)

    planned_function(function, X, W, mesh=mesh, option=OPTIONS[option], batch_argnums=(0,))
