"""Cumulative sums, products and maxima along the batch and along other dims, also where devices do not divide them."""

from collections.abc import Callable
from typing import Any

import alpa
import jax.numpy as jnp
import numpy as np
import pytest
from alpa import AutoShardingOption
from jax import lax

from integration.planned import ESTIMATE, planned_function

_RNG = np.random.default_rng(0)
W = _RNG.normal(size=(8, 8)).astype(np.float32)
BATCHES = {"16": _RNG.normal(size=(16, 8)).astype(np.float32), "7": _RNG.normal(size=(7, 8)).astype(np.float32)}

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum along the batch": lambda x: jnp.cumsum(x, 0),
    "sum along features": lambda x: jnp.cumsum(x, 1),
    "sum of all": jnp.cumsum,
    "sum from the end": lambda x: lax.cumsum(x, 0, reverse=True),
    "product": lambda x: lax.cumprod(jnp.cos(x), 0),
    "maximum": lambda x: lax.cummax(x, 0),
    "logsumexp": lambda x: lax.cumlogsumexp(x, 0),
}
OPTIONS = {
    "cfp": ESTIMATE,
    "ilp": AutoShardingOption(force_batch_dim_to_mesh_dim=-1),
    "zero-2": AutoShardingOption(force_batch_dim_to_mesh_dim=-1, prefer_reduce_scatter=True),
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("mesh", ["1x8", "2x4"])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_cumulative_op_equals_the_serial_one(name: str, batch: str, mesh: str, option: str) -> None:
    def function(x: Any, w: Any) -> tuple[Any, Any]:
        return FUNCTIONS[name](x), FUNCTIONS[name](jnp.tanh(x @ w))

    planned_function(function, BATCHES[batch], W, mesh=mesh, option=OPTIONS[option], batch_argnums=(0,))


def test_a_cumulative_sum_of_a_batch_by_alpas_defaults_equals_the_serial_one() -> None:
    for batch in BATCHES.values():
        found = alpa.parallelize(lambda x: jnp.cumsum(x, 0), batch_argnums=(0,), donate_argnums=())(batch)
        np.testing.assert_allclose(np.asarray(found), np.cumsum(batch, 0), rtol=1e-5, atol=1e-5)
