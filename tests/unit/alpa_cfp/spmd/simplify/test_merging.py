"""Equal values are computed once and unused ones not at all; markers, random ops and side effects stay."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unit.alpa_cfp.spmd.simplify.simplified import simplified, simplify_and_look

X = np.linspace(0.1, 0.9, 8, dtype=np.float32)


def _program(body: str) -> str:
    return f"""module {{ sdy.mesh @mesh = <["x"=2]>
      func.func @main(%a: tensor<8xf32> {{tf.aliasing_output = 0 : i32}}, %b: tensor<8xf32>) -> tensor<8xf32> {{
        {body}
      }}
    }}"""


def _marker(name: str, operands: str = "%a, %b") -> str:
    types = "tensor<8xf32>, tensor<8xf32>"
    return f'"stablehlo.optimization_barrier"({operands}) {{alpa.marker = "{name}"}} : ({types}) -> ({types})'


def test_equal_values_are_computed_once():
    assert simplified(lambda x: jnp.exp(x) * jnp.exp(x), X).ops == ("exponential", "multiply")


def test_a_chain_that_nothing_uses_is_dropped():
    def function(x: jax.Array) -> jax.Array:
        lax.exp(lax.sin(lax.cos(x)))
        return -x

    assert simplified(function, X).ops == ("negate",)


def test_markers_stay_where_they_are_unused_or_equal():
    body = f"""%m:2 = {_marker("0$start")}
      %n:2 = {_marker("0$start")}
      %u:2 = {_marker("1$end")}
      %y = stablehlo.add %m#0, %n#1 : tensor<8xf32>
      return %y : tensor<8xf32>"""
    result = simplify_and_look(_program(body))
    assert result.ops == ("optimization_barrier",) * 3 + ("add",)
    assert [result.text.count(f'{{alpa.marker = "{name}"}}') for name in ("0$start", "1$end")] == [2, 1]


def test_a_marker_keeps_all_operands_and_results():
    body = f"""%z = stablehlo.constant dense<0.0> : tensor<8xf32>
      %c = stablehlo.add %a, %z : tensor<8xf32>
      %m:2 = {_marker("0$start", "%c, %a")}
      return %m#1 : tensor<8xf32>"""
    result = simplify_and_look(_program(body))
    assert result.ops == ("optimization_barrier",)
    assert '{alpa.marker = "0$start"} %arg0, %arg0 : tensor<8xf32>, tensor<8xf32>' in result.text


def test_aliases_and_the_mesh_are_kept():
    text = simplify_and_look(_program("return %a : tensor<8xf32>")).text
    assert "%arg0: tensor<8xf32> {tf.aliasing_output = 0 : i32}" in text
    assert 'sdy.mesh @mesh = <["x"=2]>' in text


def test_equal_random_ops_draw_twice():
    body = """%low = stablehlo.constant dense<0.0> : tensor<f32>
      %high = stablehlo.constant dense<1.0> : tensor<f32>
      %shape = stablehlo.constant dense<8> : tensor<1xi64>
      %r = stablehlo.rng %low, %high, %shape, distribution = UNIFORM
        : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<8xf32>
      %s = stablehlo.rng %low, %high, %shape, distribution = UNIFORM
        : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<8xf32>
      %y = stablehlo.add %r, %s : tensor<8xf32>
      return %y : tensor<8xf32>"""
    assert simplify_and_look(_program(body)).ops == ("rng", "rng", "add")


def test_a_call_with_a_side_effect_stays():
    body = """%y = stablehlo.custom_call @print(%a) {has_side_effect = true} : (tensor<8xf32>) -> tensor<8xf32>
      return %b : tensor<8xf32>"""
    assert simplify_and_look(_program(body)).ops == ("custom_call",)


def test_sharding_constraints_stay():
    body = """%y = sdy.sharding_constraint %a <@mesh, [{"x"}]> : tensor<8xf32>
      return %y : tensor<8xf32>"""
    assert simplify_and_look(_program(body)).ops == ("sdy.sharding_constraint",)


def test_what_is_recomputed_behind_a_barrier_is_not_merged_with_the_first_time():
    def loss(x: jax.Array) -> jax.Array:
        return jnp.sum(jax.checkpoint(lambda y: jnp.sin(jnp.exp(y)))(x))

    result = simplified(jax.grad(loss), X)
    assert "optimization_barrier" in result.ops


def test_bodies_of_loops_are_left_as_they_are():
    def function(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 3, lambda i, y: lax.neg(lax.neg(y)) * 1.0 + 0.0 * i, x)

    text = simplified(function, X).text
    assert text.count("stablehlo.negate") == 2
