"""The nodes of a program: what they follow, what they cost, and which ops have no strategies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_on_jax.xla_extension.auto_sharding.communication import INFINITY_COST, Communication
from unit.alpa_on_jax.xla_extension.auto_sharding.programs import MESH_SHAPES, ilp_of, only, options, strategies_of

X, W = np.ones((8, 4), np.float32), np.ones((4, 8), np.float32)


def _loss(w, x):
    return jnp.sum(jnp.tanh((x @ w).reshape(8, 2, 4)).max(2) ** 2)


@pytest.mark.parametrize("mesh_shape", MESH_SHAPES, ids=str)
def test_every_edge_holds_the_cost_from_each_spec_to_the_one_that_is_required(mesh_shape):
    ilp = ilp_of(jax.grad(_loss), W, X, chosen=options(mesh_shape))
    communication = Communication(options(mesh_shape))
    for instruction, node in ilp.nodes.items():
        sources = {source.instruction: matrix for source, matrix in node.edges}
        for operand, matrix in sources.items():
            required = [s.operand_specs[instruction.operands.index(operand)] for s in node.strategies]
            assert matrix.shape == (len(ilp.nodes[operand].strategies), len(node.strategies))
            if np.any(matrix >= INFINITY_COST) or instruction.operands.count(operand) > 1:
                continue  # followed, or used twice
            for i, spec in enumerate(ilp.nodes[operand].specs):
                expected = [communication.resharding(operand.size_bytes, spec, target) for target in required]
                assert matrix[i].tolist() == expected


@pytest.mark.parametrize("mesh_shape", MESH_SHAPES, ids=str)
def test_a_node_takes_the_memory_of_its_part(mesh_shape):
    ilp = ilp_of(lambda x, w: x @ w, X, W, chosen=options(mesh_shape))
    mesh = Communication(options(mesh_shape)).mesh
    for instruction, node in ilp.nodes.items():
        for spec, size in zip(node.specs, node.memory_bytes, strict=True):
            assert size * mesh.num_tiles(spec) == instruction.size_bytes


def test_a_marker_takes_no_memory_of_its_own():
    ilp = ilp_of(lambda x: jax.lax.optimization_barrier((x,)), X, chosen=options((4, 1)))
    assert not ilp.nodes[only(ilp.graph, "marker")].memory_bytes.any()


def test_the_root_is_at_the_end_of_the_chain_of_what_is_followed():
    ilp = ilp_of(lambda x: jnp.tanh(x).T * 2, X, chosen=options((4, 1)))
    assert ilp.nodes[ilp.graph.results[0]].root is ilp.nodes[ilp.graph.parameters[0]]


def test_a_value_that_follows_itself_through_an_op_used_twice_costs_nothing_more():
    ilp = ilp_of(lambda x: x * x, X, chosen=options((4, 1)))
    node = ilp.nodes[only(ilp.graph, "multiply")]
    for i, followed in enumerate(node.follows):
        assert sum(matrix[followed, i] for _, matrix in node.edges) == 0


def test_an_op_without_strategies_is_computed_as_a_whole_and_listed():
    def function(x):
        return jax.lax.while_loop(lambda y: y.sum() < 100, lambda y: y * 2, x)

    ilp = ilp_of(function, X, chosen=options((4, 1)))
    loop = only(ilp.graph, "while")
    assert [s.spec for s in strategies_of(ilp, loop)] == [(0, 0)]
    assert ilp.without_strategies == (loop,)


@pytest.mark.parametrize("mesh_shape", MESH_SHAPES, ids=str)
def test_all_results_and_operands_of_an_op_without_strategies_are_replicated(mesh_shape):
    ilp = ilp_of(lambda x: jax.lax.top_k(x, 2), X, chosen=options(mesh_shape))
    top = only(ilp.graph, "top_k")
    (strategy,) = strategies_of(ilp, top)
    assert strategy.operand_specs == ((0, 0),)
    assert [set(ilp.nodes[result].specs) for result in ilp.graph.results] == [{(0, 0)}, {(0, 0)}]


def test_between_operands_that_are_equally_split_the_deeper_one_is_followed():
    ilp = ilp_of(lambda x, y: jnp.tanh(jnp.sin(jnp.cos(x))) + y, X, X, chosen=options((4, 1)))
    add = ilp.nodes[only(ilp.graph, "add")]
    assert add.following is ilp.nodes[only(ilp.graph, "tanh")]
