"""`alpa_cfp.analysis.loops`: a loop and its backward loop as one iteration."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from alpa_cfp.analysis.loops import Iteration, find_iterations
from unit.alpa_cfp.analysis.programs import graph_of

X = jax.ShapeDtypeStruct((4, 16), jnp.float32)
STACK = jax.ShapeDtypeStruct((3, 16, 16), jnp.float32)


def iterations_of(function: Callable[..., Any], *args: Any) -> tuple[Iteration, ...]:
    return find_iterations(graph_of(function, *args))


def scanned(x: jax.Array, weights: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda carry, weight: (jnp.tanh(carry @ weight), None), x, weights)[0]


def test_a_loop_without_gradients_stands_alone():
    (iteration,) = iterations_of(scanned, X, STACK)
    assert len(iteration.loops) == 1


def test_a_loop_and_its_backward_loop_are_one_iteration():
    graph = graph_of(jax.grad(lambda x, w: jnp.sum(scanned(x, w))), X, STACK)
    (iteration,) = find_iterations(graph)
    forward, backward = graph.loops
    assert iteration.loops == (forward.op, backward.op)
    names = [op.name for op in iteration.graph.ops]
    assert names == [op.name for op in (*forward.body.ops, *backward.body.ops)]


def test_the_backward_body_takes_the_values_of_the_forward_body():
    (iteration,) = iterations_of(jax.grad(lambda x, w: jnp.sum(scanned(x, w)), (0, 1)), X, STACK)
    graph = iteration.graph
    dots = [op for op in graph.ops if op.name == "stablehlo.dot_general"]
    forward, *gradients = dots
    assert len(gradients) == 2
    for gradient in gradients:
        shared = set(_before_transposes(graph, gradient.operands)) & set(forward.operands)
        assert len(shared) == 1


def _before_transposes(graph: Any, values: tuple[int, ...]) -> list[int]:
    result: list[int] = []
    for value in values:
        producer = graph.producer(value)
        is_layout = producer is not None and producer.name == "stablehlo.transpose"
        result.append(producer.operands[0] if is_layout else value)
    return result


def test_a_joint_graph_keeps_operands_before_their_users_and_knows_all_users():
    (iteration,) = iterations_of(jax.grad(lambda x, w: jnp.sum(scanned(x, w)), (0, 1)), X, STACK)
    graph = iteration.graph
    for op in graph.ops:
        for operand in op.operands:
            producer = graph.values[operand].op
            assert producer is None or producer < op.index
            assert op.index in graph.values[operand].users
    assert sum(len(value.users) for value in graph.values) == sum(len(set(op.operands)) for op in graph.ops)
    assert [value.id for value in graph.values] == list(range(len(graph.values)))


def test_each_of_two_loops_is_joined_with_its_own_backward_loop():
    def twice(x: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
        return jnp.sum(scanned(jnp.sin(scanned(x, first)), second))

    graph = graph_of(jax.grad(twice, (1, 2)), X, STACK, STACK)
    iterations = find_iterations(graph)
    a, b, c, d = (loop.op for loop in graph.loops)
    assert [iteration.loops for iteration in iterations] == [(a, d), (b, c)]


def test_a_constant_made_before_a_loop_is_the_same_as_one_made_inside():
    def masked(x: jax.Array, weights: jax.Array) -> jax.Array:
        def body(carry: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
            mask = jnp.tril(jnp.ones((4, 16), jnp.float32))
            return jnp.tanh((carry * mask) @ weight) @ weight, None

        return jnp.sum(jax.lax.scan(jax.checkpoint(body), x, weights)[0])

    (iteration,) = iterations_of(jax.grad(masked, (0, 1)), X, STACK)
    assert iteration.graph.constants
