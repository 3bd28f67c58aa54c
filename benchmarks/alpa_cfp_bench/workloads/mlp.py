"""A net of dense layers: takes a size, gives back the model."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from alpa_cfp_bench.workloads.model import Model, apply_gradients, initial_state
from alpa_cfp_bench.workloads.sizes import Size


class Mlp(nn.Module):
    """Four dense layers with biases, relu in between."""

    hidden: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for width in (2 * self.hidden, self.hidden, 2 * self.hidden):
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.hidden)(x)


def mlp(size: Size) -> Model:
    """A regression by `Mlp`."""
    rng = np.random.default_rng(0)
    batch = {name: jnp.asarray(rng.normal(size=(size.batch, size.hidden)), jnp.float32) for name in ("x", "y")}
    module = Mlp(size.hidden)
    state = initial_state(module, [batch["x"]], 0.5)

    def loss(params: Any, state: Any, batch: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, Any]]:
        error = state.apply_fn(params, batch["x"]) - batch["y"]
        return jnp.mean(error**2), {"metrics": {"mean_absolute_error": jnp.mean(jnp.abs(error))}}

    return Model("mlp", state, batch, loss, apply_gradients)
