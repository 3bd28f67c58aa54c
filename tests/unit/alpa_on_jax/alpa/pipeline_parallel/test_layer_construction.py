"""Layers that alpa makes of a loss function: they compute the same, with the marks where they belong."""

from collections.abc import Callable

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa.pipeline_parallel.layer_stats import eqn_flops
from alpa.pipeline_parallel.primitive_def import pipeline_p
from alpa.util import GradFuncTransformContext

pytestmark = pytest.mark.slow

LAYERS = {
    "manual": alpa.ManualLayerOption(),
    "manual with remat": alpa.ManualLayerOption(remat_layer=True),
    "automatic": alpa.AutoLayerOption(layer_num=2),
    "automatic, coarse remat": alpa.AutoLayerOption(layer_num=2, remat_mode="coarse_grained_remat"),
    "automatic, fine remat": alpa.AutoLayerOption(
        layer_num=2, remat_mode="fine_grained_remat", fine_grained_remat_layer_num=4
    ),
}


def step(grad: Callable, boundary: bool) -> Callable:
    def compute(params, x):
        # The loss closes over x, as training steps do.
        def loss(params):
            h = x
            for i, w in enumerate(params):
                h = jnp.tanh(h @ w)
                if boundary and i == 1:
                    alpa.mark_pipeline_boundary()
            return jnp.mean(h**2)

        return grad(loss)(params)

    return compute


@pytest.fixture
def arguments() -> tuple[list[jax.Array], jax.Array]:
    keys = jax.random.split(jax.random.PRNGKey(0), 5)
    return [jax.random.normal(key, (8, 8)) for key in keys[:4]], jax.random.normal(keys[4], (16, 8))


@pytest.mark.parametrize("name", LAYERS)
def test_a_loss_in_layers_has_the_same_value_and_gradients(name: str, arguments: tuple) -> None:
    expected = step(jax.value_and_grad, False)(*arguments)
    with GradFuncTransformContext(LAYERS[name].transform), jax.disable_jit():
        jaxpr = jax.make_jaxpr(step(alpa.value_and_grad, name.startswith("manual")))(*arguments)
    found = jax.core.jaxpr_as_fun(jaxpr)(*jax.tree.leaves(arguments))
    for a, b in zip(jax.tree.leaves(expected), found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    marks = [(e.params["name"], e.params["mark_type"]) for e in jaxpr.eqns if e.primitive is pipeline_p]
    order = ["layer_0", "layer_1", "layer_1_backward", "layer_0_backward"]
    starts_and_ends = [(layer, kind) for layer in order for kind in ("start", "end")]
    assert [mark for mark in marks if mark in starts_and_ends] == starts_and_ends
    assert marks[-1] == ("grad", "grad")


def test_a_layer_with_remat_computes_its_forward_part_again(arguments: tuple) -> None:
    with GradFuncTransformContext(LAYERS["manual with remat"].transform), jax.disable_jit():
        jaxpr = jax.make_jaxpr(step(alpa.value_and_grad, True))(*arguments)
    assert "remat2" in [eqn.primitive.name for eqn in jaxpr.eqns] or "checkpoint" in str(jaxpr)


def test_a_result_that_is_a_constant_gets_an_equation_of_its_own() -> None:
    def loss(x):
        y = x * 2
        alpa.mark_pipeline_boundary()
        return jnp.sum(y), 1.0

    layered = alpa.ManualLayerOption().transform(loss)
    value, constant = layered(jnp.ones(3))
    assert (value, constant) == (6.0, 1.0)


def test_the_flops_of_a_product_are_two_for_each_multiplication() -> None:
    eqn = jax.make_jaxpr(jnp.matmul)(jnp.ones((4, 8)), jnp.ones((8, 16))).eqns[-1]
    assert eqn_flops(eqn) == 2 * 4 * 8 * 16


def test_the_flops_of_a_nested_program_are_those_of_its_equations() -> None:
    inner = jax.jit(lambda x, y: jnp.sin(x @ y) @ y)
    eqn = jax.make_jaxpr(inner)(jnp.ones((8, 8)), jnp.ones((8, 8))).eqns[0]
    assert eqn_flops(eqn) == 2 * 2 * 8**3


def test_elementwise_operations_count_no_flops() -> None:
    assert eqn_flops(jax.make_jaxpr(jnp.sin)(1.0).eqns[0]) == 0
