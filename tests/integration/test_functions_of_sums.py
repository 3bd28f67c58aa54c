"""Whole programs in which a function without a sharding rule is computed of sums over devices."""

import alpa
import jax
import numpy as np
import pytest
from jax import lax

from alpa_cfp import autoshard
from integration.planned import ESTIMATE, planned_function
from integration.serial import assert_equal_up_to_rounding, run_serially

_RNG = np.random.default_rng(0)
# The contracted dim is so long that to split it is the best plan. Its sums are exact in each order, as all terms are
# multiples of 2**-13: zeta of four multiplies the rounding of its argument by six.
X = (_RNG.integers(1, 3, (3, 4096)) / 1024).astype(np.float32)
W1, W2 = (_RNG.integers(3, 9, (4096, 3)).astype(np.float32) / 8 for _ in range(2))
FUNCTIONS = {"zeta": lax.zeta, "nextafter": lax.nextafter, "polygamma": lambda m, x: lax.polygamma(lax.round(m), x)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_two_products_is_not_taken_for_their_sum(name: str):
    def function(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
        return FUNCTIONS[name](x @ w1, x @ w2)

    for option in (ESTIMATE, alpa.AutoShardingOption()):
        planned_function(function, X, W1, W2, mesh="1x4", option=option)
    plan = autoshard(function, jax.make_mesh((1, 4), ("rows", "columns")), X, W1, W2, option=ESTIMATE)
    actual = np.asarray(plan.jit(function)(X, W1, W2))
    assert_equal_up_to_rounding(actual, run_serially(function, X, W1, W2))
