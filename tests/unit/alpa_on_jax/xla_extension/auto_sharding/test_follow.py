"""Ops that follow an operand compute, in every strategy, their parts of the result from the parts that are required."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_on_jax.xla_extension.auto_sharding.communication import Communication
from alpa_on_jax.xla_extension.auto_sharding.specs import BOTH, FIRST, NONE
from unit.alpa_on_jax.xla_extension.auto_sharding.programs import (
    MESH_SHAPES,
    assert_right,
    ilp_of,
    ilp_of_module,
    only,
    options,
    strategies_of,
)

X = np.arange(64, dtype=np.float32).reshape(8, 8) / 7
CUBE = np.arange(8 * 4 * 4, dtype=np.float32).reshape(8, 4, 4) / 7

# The op, the program, what it is called with, and what one device does with its parts.
CASES: dict[str, tuple[str, Callable[..., Any], tuple[np.ndarray, ...], Callable[..., np.ndarray]]] = {
    "elementwise": ("multiply", lambda x, y: x * y, (X, X + 1), lambda x, y: x * y),
    "select": (
        "select",
        lambda c, x, y: jax.lax.select(c, x, y),
        (X > 4, X, X + 1),
        lambda c, x, y: np.where(c, x, y),
    ),
    "transpose": ("transpose", lambda x: x.transpose(2, 0, 1), (CUBE,), lambda x: x.transpose(2, 0, 1)),
    "slice": ("slice", lambda x: x[:, 2:6], (X,), lambda x: x[:, 2:6]),
    "pad": ("pad", lambda x: jnp.pad(x, ((0, 0), (1, 2))), (X,), lambda x, _: np.pad(x, ((0, 0), (1, 2)))),
    "concatenate": (
        "concatenate",
        lambda x, y: jnp.concatenate((x, y), 1),
        (X, X + 1),
        lambda x, y: np.concatenate((x, y), 1),
    ),
    "sum": ("reduce", lambda x: x.sum(1), (CUBE,), lambda x, *_: x.sum(1)),
    "sum over two dims": ("reduce", lambda x: x.sum((0, 2)), (CUBE,), lambda x, *_: x.sum((0, 2))),
    "broadcast": (
        "broadcast_in_dim",
        lambda x: jax.lax.broadcast_in_dim(x, (3, 8, 8), (1, 2)),
        (X,),
        lambda x: np.broadcast_to(x, (3, *x.shape)),
    ),
    "window": (
        "reduce_window",
        lambda x: jax.lax.reduce_window(x, -np.inf, jax.lax.max, (1, 2), (1, 1), "VALID"),
        (X,),
        lambda x, _: np.maximum(x[:, 1:], x[:, :-1]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("mesh_shape", MESH_SHAPES, ids=str)
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_every_strategy_computes_the_op(mesh_shape, mixed, name):
    opcode, function, arguments, local = CASES[name]
    ilp = ilp_of(function, *arguments, chosen=options(mesh_shape, allow_mixed_mesh_shape=mixed))
    instruction = only(ilp.graph, opcode)
    values = dict(zip(ilp.graph.parameters, arguments, strict=True))
    operands = [values.get(operand, np.zeros(operand.shape, np.float32)) for operand in instruction.operands]
    strategies = strategies_of(ilp, instruction)
    assert any(any(strategy.spec) for strategy in strategies)
    for strategy in strategies:
        assert_right(Communication(options(mesh_shape)).mesh, strategy, operands, local)


@pytest.mark.parametrize("name", CASES)
def test_an_op_has_a_strategy_for_each_one_of_what_it_follows_that_it_can_follow(name):
    opcode, function, arguments, _ = CASES[name]
    ilp = ilp_of(function, *arguments, chosen=options((2, 2)))
    node = ilp.nodes[only(ilp.graph, opcode)]
    if node.following is not None:
        assert len(set(node.follows)) == len(node.follows) == len(node.strategies)
        position = node.instruction.operands.index(node.following.instruction)
        for strategy, followed in zip(node.strategies, node.follows, strict=True):
            assert strategy.operand_specs[position] == node.following.specs[followed]


def test_a_sum_along_a_split_dim_costs_an_all_reduce_of_its_part_of_the_result():
    ilp = ilp_of(lambda x: x.sum(0), X, chosen=options((2, 2)))
    communication = Communication(options((2, 2)))
    for strategy in strategies_of(ilp, only(ilp.graph, "reduce")):
        part = 8 * 4 / communication.mesh.num_tiles(strategy.spec)
        assert strategy.communication_cost == sum(communication.all_reduce(part, a) for a in strategy.all_reduce_axes)
        assert bool(strategy.all_reduce_axes) is bool(strategy.operand_specs[0][0])


def test_a_sum_along_a_dim_over_all_devices_is_priced_along_the_first_axis_as_in_alpa():
    ilp = ilp_of(lambda x: x.sum(0), X, chosen=options((2, 2), allow_mixed_mesh_shape=True))
    (strategy,) = (s for s in strategies_of(ilp, only(ilp.graph, "reduce")) if s.operand_specs[0] == (BOTH, NONE))
    assert strategy.all_reduce_axes == (0, 1)
    assert strategy.communication_cost == Communication(options((2, 2))).all_reduce(8 * 4, 0)


def test_a_sort_along_a_split_dim_costs_a_gather():
    ilp = ilp_of(lambda x: jnp.sort(x, axis=0), X, chosen=options((4, 1)))
    communication = Communication(options((4, 1)))
    costs = {s.spec: s.communication_cost for s in strategies_of(ilp, only(ilp.graph, "sort"))}
    gathering = communication.resharding(256.0, (FIRST, NONE), (NONE, NONE))
    assert costs == {(FIRST, NONE): gathering, (NONE, FIRST): 0, (NONE, NONE): 0}


def test_an_op_follows_its_deepest_operand():
    ilp = ilp_of(lambda x, w, y: y * (x @ w), X, X, X, chosen=options((4, 1)))
    assert ilp.nodes[only(ilp.graph, "multiply")].following is ilp.nodes[only(ilp.graph, "dot_general")]


def test_an_updated_parameter_follows_the_parameter_it_replaces():
    ilp = ilp_of(lambda w, g: w - g, X, X, chosen=options((4, 1)), donated=(True, False))
    assert ilp.nodes[only(ilp.graph, "subtract")].following is ilp.nodes[ilp.graph.parameters[0]]


def test_a_slice_of_what_can_only_be_split_along_the_sliced_dim_is_whole():
    ilp = ilp_of(lambda x: x[1:3], np.ones(4, np.float32), chosen=options((4, 1), allow_replicated_parameters=False))
    assert [s.spec for s in strategies_of(ilp, only(ilp.graph, "slice"))] == [(NONE,)]


def test_a_scalar_that_an_op_uses_is_whole_everywhere():
    ilp = ilp_of(
        lambda x, number: jax.lax.pad(x, number, ((0, 8, 0), (0, 0, 0))), X, np.float32(1), chosen=options((4, 1))
    )
    assert {strategy.operand_specs[1] for strategy in strategies_of(ilp, only(ilp.graph, "pad"))} == {()}


def test_a_scalar_predicate_is_laid_out_and_split_like_what_it_selects():
    program = """
      func.func @main(%c: tensor<i1>, %x: tensor<8x8xf32>) -> tensor<8x8xf32> {
        %y = stablehlo.negate %x : tensor<8x8xf32>
        %z = stablehlo.select %c, %x, %y : tensor<i1>, tensor<8x8xf32>
        return %z : tensor<8x8xf32>
      }"""
    ilp = ilp_of_module(HloModule.from_stablehlo("tested", program), options((4, 1)))
    strategies = strategies_of(ilp, only(ilp.graph, "select"))
    assert {strategy.operand_specs[0] for strategy in strategies} == {strategy.spec for strategy in strategies}


def test_a_reversed_value_keeps_its_spec():
    # As in Alpa, also along a reversed dim, where the parts change places.
    ilp = ilp_of(lambda x: jax.lax.rev(x, (1,)), X, chosen=options((4, 1)))
    assert ilp.nodes[only(ilp.graph, "reverse")].specs == ilp.nodes[ilp.graph.parameters[0]].specs


def test_a_window_follows_its_array_however_deep_the_scalar_lies_that_it_begins_with():
    def pooled(x: Any, s: Any) -> Any:
        for _ in range(8):
            s = jnp.sin(s)
        return jax.lax.reduce_window(x, s, lambda a, b: a + b, (2, 1), (1, 1), "VALID")

    ilp = ilp_of(pooled, X[:7, :7], np.float32(1), chosen=options((8, 1)))
    assert strategies_of(ilp, only(ilp.graph, "reduce_window"))[0].spec == (NONE, NONE)
