"""The state arrays of a program that are updated together, and the ops that update them."""

from typing import Any

import jax
import jax.numpy as jnp

from alpa_cfp.analysis.graph import Graph
from alpa_cfp.analysis.updates import Update, find_updates
from unit.alpa_cfp.analysis.programs import graph_of

W = jax.ShapeDtypeStruct((16, 32), jnp.float32)
X = jax.ShapeDtypeStruct((8, 16), jnp.float32)
SCALAR = jax.ShapeDtypeStruct((), jnp.float32)


def gradient(w: Any, x: Any) -> Any:
    return x.T @ jnp.tanh(x @ w)


def updates_of(function: Any, *args: Any, pairs: list[tuple[int, int]]) -> tuple[Graph, tuple[Update, ...]]:
    graph = graph_of(function, *args)
    return graph, find_updates(graph, pairs)


def names(graph: Graph, update: Update) -> set[str]:
    return {graph.ops[op].name for op in update.ops} - {"stablehlo.broadcast_in_dim"}


def momentum(w: Any, m: Any, x: Any) -> Any:
    moved = 0.9 * m + gradient(w, x)
    return w - 0.1 * moved, moved


def test_a_weight_and_its_moment_are_one_update() -> None:
    _, (update,) = updates_of(momentum, W, W, X, pairs=[(0, 0), (1, 1)])
    assert (update.weights, update.moments) == ((0,), (1,))


def test_an_update_has_elementwise_ops_only() -> None:
    graph, (update,) = updates_of(momentum, W, W, X, pairs=[(0, 0), (1, 1)])
    assert names(graph, update) == {"stablehlo.add", "stablehlo.multiply", "stablehlo.subtract"}


def test_what_is_used_for_more_than_new_values_is_no_part_of_an_update() -> None:
    def clipped(w: Any, x: Any) -> Any:
        found = gradient(w, x) * 2
        return w - found / jnp.sum(found * found)

    graph, (update,) = updates_of(clipped, W, X, pairs=[(0, 0)])
    # Neither the doubled gradient, which the norm needs too, nor the squares.
    assert names(graph, update) == {"stablehlo.divide", "stablehlo.subtract"}


def test_a_gradient_that_is_returned_is_no_part_of_an_update() -> None:
    def step(w: Any, x: Any) -> Any:
        found = gradient(w, x) * 2
        return w - found, found

    graph, (update,) = updates_of(step, W, X, pairs=[(0, 0)])
    assert names(graph, update) == {"stablehlo.subtract"}


def test_weights_of_different_layers_are_different_updates() -> None:
    def step(w: Any, v: Any, x: Any) -> Any:
        return w - gradient(w, x), v - gradient(v, x)

    _, updates = updates_of(step, W, W, X, pairs=[(0, 0), (1, 1)])
    assert [update.weights for update in updates] == [(0,), (1,)]


def test_without_state_there_is_no_update() -> None:
    assert updates_of(lambda w, x: w - gradient(w, x), W, X, pairs=[])[1] == ()


def test_a_scalar_of_the_state_is_no_update() -> None:
    assert updates_of(lambda count: count + 1, SCALAR, pairs=[(0, 0)])[1] == ()


def test_a_scalar_factor_is_spread_over_the_array_inside_the_update() -> None:
    graph, (update,) = updates_of(lambda w, rate, x: w - rate * gradient(w, x), W, SCALAR, X, pairs=[(0, 0)])
    assert "stablehlo.multiply" in names(graph, update)


def test_an_average_that_nothing_reads_is_no_update() -> None:
    def step(w: Any, mean: Any, x: Any) -> Any:
        y = x @ w
        return w - gradient(w, x), 0.9 * mean + 0.1 * y

    y = jax.ShapeDtypeStruct((8, 32), jnp.float32)
    _, updates = updates_of(step, W, y, X, pairs=[(0, 0), (1, 1)])
    assert [update.weights for update in updates] == [(0,)]
