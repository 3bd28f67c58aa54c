"""The order of ops: each behind what it is computed from, and that of the layers where names have another one."""

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from alpa_cfp.analysis.ordering import Order
from unit.alpa_cfp.analysis.programs import graph_of, model_blocks

X = jax.ShapeDtypeStruct((8, 16), jnp.float32)
W = jax.ShapeDtypeStruct((16, 16), jnp.float32)


@pytest.mark.parametrize("name", ["mlp", "gpt", "moe", "conv", "llama, remat", "llama, scan"])
def test_every_op_comes_behind_those_that_make_its_operands(name: str) -> None:
    graph = model_blocks(name).graph
    ordered = Order(graph).of(range(len(graph.ops)))
    assert sorted(ordered) == list(range(len(graph.ops)))
    place = {op: i for i, op in enumerate(ordered)}
    for op in graph.ops:
        assert all(place[producer.index] < place[op.index] for v in op.operands if (producer := graph.producer(v)))


def updates_in_order(names: list[str]) -> list[tuple[str, ...]]:
    """The names of the ops of a step of momentum over a chain of layers that are called `names`, in order."""

    def step(weights: dict[str, jax.Array], traces: dict[str, jax.Array], x: jax.Array) -> Any:
        def loss(weights: dict[str, jax.Array]) -> jax.Array:
            y = x
            for name in names:
                y = jnp.tanh(y @ weights[name])
            return jnp.mean(y**2)

        traces = jax.tree.map(lambda g, t: g + 0.9 * t, jax.grad(loss)(weights), traces)
        return jax.tree.map(lambda w, t: w - 0.1 * t, weights, traces), traces

    graph = graph_of(step, dict.fromkeys(names, W), dict.fromkeys(names, W), X)
    # The middle layer's gradient: from the product before it to the one behind it.
    ordered = [op for op in Order(graph).of(range(len(graph.ops))) if not graph.constant_derived[op]]
    dots = [i for i, op in enumerate(ordered) if graph.ops[op].name == "stablehlo.dot_general"]
    return [tuple(graph.ops[op].name for op in ordered[start:stop]) for start, stop in pairwise(dots)]


def test_the_order_of_updates_does_not_depend_on_the_names_of_parameters() -> None:
    assert updates_in_order(["a", "b", "c", "d"]) == updates_in_order(["d", "b", "a", "c"])


def test_an_update_comes_right_behind_its_gradient() -> None:
    *_, last = updates_in_order(["a", "b", "c", "d"])[:-1]
    assert "stablehlo.subtract" in last
