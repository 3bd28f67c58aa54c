"""The strategies of values that follow nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_on_jax.xla_extension.auto_sharding.communication import Communication
from alpa_on_jax.xla_extension.auto_sharding.specs import BOTH, FIRST, NONE, SECOND
from unit.alpa_on_jax.xla_extension.auto_sharding.programs import (
    MESH_SHAPES,
    all_specs,
    assert_right,
    graph_of,
    ilp_of,
    only,
    options,
    strategies_of,
)

X, UNEVEN = np.ones((8, 4), np.float32), np.ones((6, 4), np.float32)


def _of_parameter(argument: np.ndarray, mesh_shape: tuple[int, int], **changes: bool) -> list[tuple[int, ...]]:
    ilp = ilp_of(lambda x: x + 1, argument, chosen=options(mesh_shape, **changes))
    return [strategy.spec for strategy in strategies_of(ilp, ilp.graph.parameters[0])]


def test_a_parameter_is_split_along_one_axis_or_whole():
    assert _of_parameter(X, (2, 2)) == [
        (FIRST, NONE), (SECOND, NONE), (NONE, FIRST), (NONE, SECOND), (NONE, NONE)
    ]  # fmt: skip


def test_a_parameter_is_split_only_where_the_parts_are_even():
    assert _of_parameter(UNEVEN, (4, 1)) == [(NONE, FIRST), (NONE, NONE)]


def test_a_parameter_that_must_not_be_replicated_is_split():
    assert _of_parameter(X, (4, 1), allow_replicated_parameters=False) == [(FIRST, NONE), (NONE, FIRST)]


def test_a_parameter_that_cannot_be_split_is_whole_even_where_that_is_forbidden():
    assert _of_parameter(np.ones(3, np.float32), (4, 1), allow_replicated_parameters=False) == [(NONE,)]


def test_with_mixed_mesh_shapes_a_parameter_may_be_split_over_all_devices():
    assert set(_of_parameter(X, (2, 2), allow_mixed_mesh_shape=True)) - set(_of_parameter(X, (2, 2))) == {
        (BOTH, NONE), (NONE, BOTH)
    }  # fmt: skip


@pytest.mark.parametrize("mesh_shape", MESH_SHAPES, ids=str)
def test_a_whole_parameter_costs_the_replicated_penalty_and_a_split_one_nothing(mesh_shape):
    ilp = ilp_of(lambda x: x + 1, X, chosen=options(mesh_shape))
    penalty = Communication(options(mesh_shape)).replicated_penalty
    for strategy in strategies_of(ilp, ilp.graph.parameters[0]):
        assert strategy.compute_cost == (0 if any(strategy.spec) else penalty)
    assert penalty > 0


def test_an_activation_may_be_split_along_two_dims():
    def stage(x, w):
        x, w = jax.lax.optimization_barrier((x, w))
        return x @ w

    from alpa_on_jax.xla_extension.auto_sharding.ilp import build_ilp

    graph = graph_of(stage, X, X.T, markers=["one$start"])
    ilp = build_ilp(graph, [], Communication(options((2, 2))), options((2, 2)))
    activation, weight = (
        {strategy.spec for strategy in strategies_of(ilp, parameter)} for parameter in graph.parameters
    )
    assert (FIRST, SECOND) in activation
    assert (FIRST, SECOND) not in weight


def test_a_parameter_with_a_given_spec_has_no_other():
    from alpa_on_jax.xla_extension.auto_sharding.ilp import build_ilp

    graph = graph_of(lambda x: x + 1, X)
    (parameter,) = graph.parameters
    for spec in [(NONE, NONE), (SECOND, FIRST)]:
        ilp = build_ilp(graph, [], Communication(options((2, 2))), options((2, 2)), {parameter: spec})
        assert [strategy.spec for strategy in strategies_of(ilp, parameter)] == [spec]


def test_a_constant_is_whole():
    ilp = ilp_of(lambda x: x + np.arange(4, dtype=np.float32), X, chosen=options((4, 1)))
    assert [s.spec for s in strategies_of(ilp, only(ilp.graph, "constant"))] == [(NONE,)]


def test_a_filled_result_may_be_split_in_any_way():
    ilp = ilp_of(lambda: jnp.zeros((8, 4)), chosen=options((4, 1)))
    assert {s.spec for s in strategies_of(ilp, ilp.graph.results[0])} == {(FIRST, NONE), (NONE, FIRST), (NONE, NONE)}


def test_an_iota_on_one_axis_is_split_along_any_dim():
    ilp = ilp_of(lambda x: x + jax.lax.broadcasted_iota(np.float32, (8, 4), 1), X, chosen=options((4, 1)))
    assert {(FIRST, NONE), (NONE, FIRST)} <= {s.spec for s in strategies_of(ilp, only(ilp.graph, "iota"))}


@pytest.mark.parametrize("mesh_shape", MESH_SHAPES, ids=str)
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("used", [1, 2])
@pytest.mark.parametrize("after", [(32,), (2, 4, 4), (8, 2, 2), (8, 1, 4)], ids=str)
def test_every_strategy_of_a_reshape_leaves_each_element_where_it_is(mesh_shape, mixed, used, after):
    x = np.arange(32, dtype=np.float32).reshape(8, 4)

    def function(x):
        y = x.reshape(after)
        return y if used == 1 else (y + 1, y * 3)

    ilp = ilp_of(function, x, chosen=options(mesh_shape, allow_mixed_mesh_shape=mixed))
    mesh = Communication(options(mesh_shape)).mesh
    reshape = only(ilp.graph, "reshape") if used == 1 else ilp.graph.instructions[1]
    strategies = strategies_of(ilp, reshape)
    assert strategies
    for strategy in strategies:
        tiles = mesh.num_tiles(strategy.spec)
        assert mesh.num_tiles(strategy.operand_specs[0]) == tiles
        local = tuple(size // mesh.sizes[code] for size, code in zip(after, strategy.spec, strict=True))
        assert_right(mesh, strategy, (x,), lambda part, local=local: part.reshape(after if part.size == 32 else local))


@pytest.mark.parametrize("mesh_shape", MESH_SHAPES, ids=str)
def test_a_value_has_no_spec_that_does_not_exist(mesh_shape):
    def function(x, w):
        return jnp.tanh(x @ w).reshape(2, 4, 8).sum(1) + jnp.arange(8)

    chosen = options(mesh_shape, allow_mixed_mesh_shape=True)
    ilp = ilp_of(function, X, X.T, chosen=chosen)
    mesh = Communication(chosen).mesh
    for instruction, node in ilp.nodes.items():
        assert set(node.specs) <= set(all_specs(mesh, instruction.rank))
