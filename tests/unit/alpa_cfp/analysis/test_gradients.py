"""`alpa_cfp.analysis.gradients`: which contractions are one trilinear form and its derivatives."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from alpa_cfp.analysis.contractions import Side, find_contractions
from alpa_cfp.analysis.gradients import GradientGroup, find_gradient_groups
from alpa_cfp.analysis.graph import Graph
from alpa_cfp.analysis.structure import find_structure
from unit.alpa_cfp.analysis.programs import graph_of

X = jax.ShapeDtypeStruct((4, 8, 16), jnp.float32)
W = jax.ShapeDtypeStruct((16, 32), jnp.float32)
V = jax.ShapeDtypeStruct((32, 16), jnp.float32)
TOKENS = jax.ShapeDtypeStruct((4, 8), jnp.int32)


def groups_of(function: Callable[..., Any], *args: Any) -> tuple[Graph, tuple[GradientGroup, ...]]:
    graph = graph_of(function, *args)
    structure = find_structure(graph)
    return graph, find_gradient_groups(graph, structure, find_contractions(graph, structure))


def roles(group: GradientGroup) -> list[str]:
    return [member.role for member in group.members]


def grad_of(function: Callable[..., jax.Array], argnums: tuple[int, ...]) -> Callable[..., Any]:
    return jax.grad(lambda *args: jnp.sum(function(*args) ** 2), argnums)


def test_both_gradients_of_a_dot_go_with_it():
    _, (group,) = groups_of(grad_of(lambda x, w: x @ w, (0, 1)), X, W)
    assert roles(group) == ["forward", "gradient", "gradient"]


def test_the_gradient_by_the_parameters_alone_goes_with_its_dot():
    _, (group,) = groups_of(grad_of(lambda x, w: x @ w, (1,)), X, W)
    assert roles(group) == ["forward", "gradient"]


def test_a_gradient_splits_along_the_dims_that_its_forward_dot_splits_along():
    graph, (group,) = groups_of(grad_of(lambda x, w: x @ w, (0, 1)), X, W)
    forward = graph.ops[group.forward.op].rule
    assert forward is not None
    for member in group.members:
        rule = graph.ops[member.op].rule
        assert rule is not None
        assert len(set(member.factors.values())) == len(group.forward.sides) == 4
        assert all(rule.sizes[its] == forward.sizes[mine] for mine, its in member.factors.items())


def test_what_the_forward_dot_keeps_of_the_input_the_parameter_gradient_sums():
    graph, (group,) = groups_of(grad_of(lambda x, w: x @ w, (1,)), X, W)
    gradient = group.members[1]
    rule = graph.ops[gradient.op].rule
    assert rule is not None
    summed = {factor for dims in rule.operands[0] for factor in dims} - {f for dims in rule.results[0] for f in dims}
    assert {gradient.factors[factor] for factor in group.forward.factors(Side.LEFT)} == summed


def test_each_of_three_dots_of_one_input_gets_its_own_gradients():
    def attention_inputs(x: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return (x @ q) * (x @ k) + jnp.tanh(x @ v)

    graph, groups = groups_of(grad_of(attention_inputs, (0, 1, 2, 3)), X, W, W, W)
    assert [roles(group) for group in groups] == [["forward", "gradient", "gradient"]] * 3
    for group in groups:
        weight = group.forward.operands[1]
        by_input = [m.op for m in group.members[1:] if weight in _operands_before_layout(graph, m.op)]
        assert len(by_input) == 1


def _operands_before_layout(graph: Graph, op: int) -> set[int]:
    structure = find_structure(graph)
    return {structure.origin[operand] for operand in graph.ops[op].operands}


def test_attention_scores_have_gradients_of_their_own():
    def scores(q: jax.Array, k: jax.Array) -> jax.Array:
        return jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k))

    _, (group,) = groups_of(grad_of(scores, (0, 1)), X, X)
    assert roles(group) == ["forward", "gradient", "gradient"]
    assert len(group.forward.factors(Side.BATCH)) == 1
    assert all(set(member.factors) == set(group.forward.sides) for member in group.members)


def test_a_rematerialised_dot_is_in_the_group_of_its_original():
    def loss(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
        return jax.checkpoint(lambda x: jnp.tanh(jnp.tanh(x @ w) @ v))(x) @ w

    _, groups = groups_of(grad_of(loss, (0, 1, 2)), X, W, V)
    assert [roles(group).count("rematerialised") for group in groups] == [1, 1, 0]
    assert [roles(group).count("gradient") for group in groups] == [2, 2, 2]


def test_two_forward_dots_of_a_tied_weight_are_two_groups():
    def tied(x: jax.Array, u: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.tanh(x @ u) @ w) @ w.T

    square = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    _, inference = groups_of(tied, X, square, W)
    assert [roles(group) for group in inference] == [["forward"]] * 3
    _, training = groups_of(grad_of(tied, (1, 2)), X, square, W)
    assert [roles(group).count("gradient") for group in training] == [1, 2, 2]


def test_the_gradient_of_an_embedding_is_the_scatter_by_the_same_tokens():
    def embed(tokens: jax.Array, table: jax.Array, w: jax.Array) -> jax.Array:
        return table[tokens] @ w

    graph, groups = groups_of(grad_of(embed, (1, 2)), TOKENS, jax.ShapeDtypeStruct((64, 16), jnp.float32), W)
    assert roles(groups[0]) == ["forward", "gradient"]
    assert [graph.ops[member.op].name for member in groups[0].members] == ["stablehlo.gather", "stablehlo.scatter"]


def test_picking_the_labels_out_of_logits_is_no_embedding():
    def pick(x: jax.Array, w: jax.Array, labels: jax.Array) -> jax.Array:
        return jnp.take_along_axis(x @ w, labels[..., None], axis=-1)

    graph, groups = groups_of(pick, X, W, TOKENS)
    assert [graph.ops[group.forward.op].name for group in groups] == ["stablehlo.dot_general"]


@pytest.mark.parametrize(("window", "stride"), [(3, 1), (3, 2), (1, 2)])
def test_the_gradients_of_a_convolution_go_with_it(window: int, stride: int):
    def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    image = jax.ShapeDtypeStruct((4, 8, 8, 16), jnp.float32)
    kernel = jax.ShapeDtypeStruct((window, window, 16, 32), jnp.float32)
    _, (group,) = groups_of(grad_of(convolve, (0, 1)), image, kernel)
    assert roles(group) == ["forward", "gradient", "gradient"]
    assert sorted(side.value for side in group.forward.sides.values()) == ["left", "reduction", "right"]
    assert all(set(member.factors) == set(group.forward.sides) for member in group.members)


def test_gradients_in_half_precision_go_with_their_dot():
    def half(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16))

    _, (group,) = groups_of(grad_of(half, (0, 1)), X, W)
    assert roles(group) == ["forward", "gradient", "gradient"]


def test_contractions_below_a_hundredth_of_the_largest_are_left_out():
    def small_beside_large(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x @ w, x[:, 0] @ w[:, :1]

    _, groups = groups_of(small_beside_large, X, W)
    assert len(groups) == 1
