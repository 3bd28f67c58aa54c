"""The pipeline marker: what it computes, its derivative, and what is left of it in a lowered module."""

import alpa
import jax
import jax.numpy as jnp
import pytest
from alpa.pipeline_parallel.primitive_def import mark_gradient, mark_pipeline_boundary, pipeline_p


def mark(*args, name="layer", mark_type="start"):
    return pipeline_p.bind(*args, name=name, mark_type=mark_type)


def markers(jaxpr) -> list[tuple[str, str]]:
    return [(e.params["name"], e.params["mark_type"]) for e in jaxpr.eqns if e.primitive is pipeline_p]


def test_a_marker_passes_its_operands_through() -> None:
    x, y = jax.jit(lambda x, y: mark(x, y))(jnp.arange(3), 2.0)
    assert x.tolist() == [0, 1, 2]
    assert y == 2.0


def test_a_marker_lowers_to_a_barrier_for_each_operand_that_carries_its_name() -> None:
    text = jax.jit(lambda x, y: mark(x, y)).lower(jnp.arange(3), 2.0).as_text()
    assert text.count("stablehlo.optimization_barrier") == 2
    assert text.count('alpa.marker = "layer$start"') == 2


def test_a_marker_whose_results_nobody_uses_stays_in_the_module() -> None:
    closed = jax.make_jaxpr(lambda x: (mark(x, mark_type="end"), x + 1)[1])(1.0)
    text = jax.jit(jax.core.jaxpr_as_fun(closed), keep_unused=True).lower(1.0).as_text()
    assert "layer$end" in text


def test_a_boundary_is_in_the_jaxpr_and_leaves_nothing_in_the_module() -> None:
    def f(x):
        mark_pipeline_boundary()
        return x + 1

    assert markers(jax.make_jaxpr(f)(1.0)) == [("boundary", "boundary")]
    assert "barrier" not in jax.jit(f).lower(1.0).as_text()
    assert jax.grad(f)(1.0) == 1.0


def test_the_backward_pass_marks_the_layer_in_reverse() -> None:
    def layer(x):
        (y,) = mark(x, mark_type="start")
        (z,) = mark(jnp.sin(y), mark_type="end")
        return z

    jaxpr = jax.make_jaxpr(jax.grad(layer))(1.0)
    forward = [("layer", "start"), ("layer", "end")]
    backward = [("layer_backward", "start"), ("layer_backward", "end")]
    assert markers(jaxpr) == forward + backward
    assert jax.grad(layer)(1.0) == pytest.approx(jax.grad(jnp.sin)(1.0))


def test_a_marker_with_integer_operands_can_be_differentiated() -> None:
    def f(x, n):
        x, n = mark(x, n)
        return (x * n).sum()

    assert jax.grad(f)(jnp.ones(2), jnp.array([2, 3])).tolist() == [2.0, 3.0]


def test_a_marker_can_be_vectorised() -> None:
    assert jax.vmap(lambda x: mark(x)[0] * 2)(jnp.arange(3)).tolist() == [0, 2, 4]


def test_gradients_are_marked_with_their_structure_kept() -> None:
    grads = {"a": jnp.ones(2), "b": (jnp.zeros(3),)}
    assert jax.tree.structure(mark_gradient(grads)) == jax.tree.structure(grads)


def test_a_value_beside_the_gradients_that_nobody_uses_is_not_computed() -> None:
    def gradient(x):
        return alpa.value_and_grad(lambda x: ((x * x).sum(), jnp.sin(x)), has_aux=True)(x)[1]

    assert "sine" not in jax.jit(gradient).lower(jnp.ones(2)).compile().as_text()


def test_a_gradient_marker_cannot_be_differentiated() -> None:
    with pytest.raises(ValueError, match="'grad' cannot be differentiated"):
        jax.grad(lambda x: mark_gradient(x * 2))(1.0)


def test_alpas_grad_and_value_and_grad_mark_what_they_return() -> None:
    def loss(x, y):
        return (x * y).sum(), {"aux": y}

    x, y = jnp.ones(2), jnp.array([2.0, 3.0])
    grads, aux = alpa.grad(loss, argnums=(0, 1), has_aux=True)(x, y)
    assert [g.tolist() for g in grads] == [[2.0, 3.0], [1.0, 1.0]]
    assert aux["aux"].tolist() == [2.0, 3.0]
    (value, aux), grad = alpa.value_and_grad(loss, has_aux=True)(x, y)
    assert value == 5.0
    assert grad.tolist() == [2.0, 3.0]
    jaxpr = jax.make_jaxpr(alpa.value_and_grad(loss, has_aux=True))(x, y)
    assert markers(jaxpr) == [("grad", "grad")]
    assert len(jaxpr.eqns[-1].invars) == 3
