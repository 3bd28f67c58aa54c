"""Training steps that say something of their own shardings, and the serial run of them.

Takes a function of the values between layers; gives a step that applies it. Bare `PartitionSpec`s are over the mesh
with which the serial run is made.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh

from alpa_cfp import Plan, PlanOptions
from integration.serial import assert_equal_up_to_rounding

ESTIMATE = PlanOptions(costs="estimate", progress=False)
AXES = ("data", "model")
Tree = dict[str, jax.Array]


def mesh(*shape: int, kind: AxisType = AxisType.Auto) -> Mesh:
    devices = np.array(jax.devices()[: math.prod(shape)]).reshape(shape)
    return Mesh(devices, AXES[: len(shape)], axis_types=(kind,) * len(shape))


def weights() -> Tree:
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = {"up": (32, 64), "down": (64, 32), "out": (32, 32)}
    return {name: jax.random.normal(key, shapes[name]) / 8 for name, key in zip(shapes, keys, strict=True)}


def batch() -> jax.Array:
    return jax.random.normal(jax.random.key(1), (16, 32))


Inner = Callable[[str, jax.Array], jax.Array]


def step_with(inner: Inner) -> Callable[[Tree, jax.Array], tuple[Tree, jax.Array, jax.Array]]:
    """A training step; `inner` gets its values between layers by name."""

    def step(params: Tree, x: jax.Array) -> tuple[Tree, jax.Array, jax.Array]:
        def loss(params: Tree) -> tuple[jax.Array, jax.Array]:
            hidden = inner("hidden", jnp.tanh(x @ params["up"]))
            y = inner("y", hidden @ params["down"])
            return jnp.mean((y @ params["out"]) ** 2), y

        (value, y), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, params, grads), value, y

    return step


def serial(fn: Callable[..., Any], on: Mesh, *args: Any) -> Any:
    """The result of plain `jax.jit`; bare `PartitionSpec`s in `fn` are over `on`."""
    with jax.set_mesh(on):
        return jax.tree.map(np.asarray, jax.jit(fn)(*args))


def assert_equals_serial(fn: Callable[..., Any], on: Mesh, plan: Plan, *args: Any) -> None:
    copies = jax.tree.map(jnp.copy, args)
    assert_equal_up_to_rounding(jax.tree.map(np.asarray, plan.jit(fn)(*copies)), serial(fn, on, *args))


def scanned(inner: Inner) -> Callable[[Tree, jax.Array], tuple[Tree, jax.Array]]:
    """A step of a scan over three layers of the same weights."""

    def step(params: Tree, x: jax.Array) -> tuple[Tree, jax.Array]:
        def loss(params: Tree) -> jax.Array:
            def layer(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
                hidden = inner("hidden", jnp.tanh(carry @ params["up"]))
                return inner("y", hidden @ params["down"]), None

            return jnp.mean(lax.scan(layer, inner("y", x), None, length=3)[0] ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, params, grads), value

    return step
