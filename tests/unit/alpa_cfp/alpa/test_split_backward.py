"""Backward stages in two parts, which together compute what the whole one does."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from alpa.pipeline_parallel.computation import JaxPipelineComputation
from alpa.pipeline_parallel.primitive_def import mark_pipeline_jaxpreqn
from jax._src import core

from alpa_cfp.alpa.split_backward import SUFFIX, split_backward

WIDTH = 8


def stage_of(closed: Any) -> Any:
    """A program as a stage between markers, as alpa makes it."""
    jaxpr, new = closed.jaxpr, core.gensym()
    outside = [new(var.aval) for var in jaxpr.invars], [new(atom.aval) for atom in jaxpr.outvars]
    start = mark_pipeline_jaxpreqn(outside[0], list(jaxpr.invars), "layer", "start")
    end = mark_pipeline_jaxpreqn(list(jaxpr.outvars), outside[1], "layer", "end")
    constants = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    return JaxPipelineComputation(
        name="layer", invars=outside[0], outvars=outside[1], eqns=[start, *jaxpr.eqns, end], consts_dir=constants
    )


def backward(first: Any, second: Any, x: Any, cotangent: Any, sums: Any) -> Any:
    """The backward pass of two layers: the cotangent of `x`, and gradients that are added to `sums`."""
    _, pull_back = jax.vjp(lambda first, second, x: jnp.tanh(x @ first) @ second, first, second, x)
    gradients = pull_back(cotangent)
    return gradients[2], [total + part for total, part in zip(sums, gradients[:2], strict=True)]


def arguments() -> list[Any]:
    square = np.random.default_rng(0).normal(size=(5, WIDTH, WIDTH)).astype(np.float32)
    return [square[0], square[1], square[2], square[3], [square[4], square[0]]]


def run(stage: Any, known: dict[Any, Any]) -> None:
    """Run a stage; its results become known."""
    results = jax.jit(core.jaxpr_as_fun(stage.closed_jaxpr()))(*(known[var] for var in stage.invars))
    known.update(zip(stage.outvars, results, strict=True))


def split(function: Any) -> tuple[Any, Any, Any]:
    """A stage that computes a function of `arguments()`, and its parts; others wait for its first result alone."""
    stage = stage_of(jax.make_jaxpr(function)(*arguments()))
    return stage, *split_backward(stage, set(stage.outvars[1:]))


def hold_equal(function: Any) -> None:
    """Hold that both parts compute what the whole does."""
    stage, *parts = split(function)
    known = dict(zip(stage.invars, jax.tree.leaves(arguments()), strict=True))
    for part in parts:
        run(part, known)
    expected = jax.tree.leaves(function(*arguments()))
    for var, value in zip(stage.outvars, expected, strict=True):
        np.testing.assert_allclose(known[var], value, rtol=1e-5, atol=1e-5)


def contractions(stage: Any) -> int:
    return sum(eqn.primitive.name == "dot_general" for eqn in stage.eqns)


def test_both_parts_compute_what_the_stage_does() -> None:
    hold_equal(backward)


def test_the_first_part_has_the_contractions_that_cotangents_need_alone() -> None:
    _, first, last = split(backward)
    # Forward: x @ first, whose tanh' is needed; backward: a cotangent of each layer, then a gradient of each.
    assert (contractions(first), contractions(last)) == (3, 2)
    assert last.name == first.name + SUFFIX


def test_what_the_first_part_computed_is_passed_and_not_computed_again() -> None:
    _, first, last = split(backward)
    assert set(first.outvars[1:]) <= set(last.invars)
    assert first.outvars[1:]


def test_functions_under_jit_are_split_too() -> None:
    function = jax.jit(backward)
    _, first, last = split(function)
    assert (contractions(first), contractions(last)) == (3, 2)
    hold_equal(function)


def test_a_stage_for_which_nobody_waits_has_all_in_the_second_part() -> None:
    stage = stage_of(jax.make_jaxpr(lambda *args: backward(*args)[1])(*arguments()))
    first, last = split_backward(stage, set(stage.outvars))
    assert (first.outvars, contractions(first)) == ([], 0)
    assert list(last.outvars) == list(stage.outvars)


def test_constants_go_to_the_part_that_uses_them() -> None:
    constant = np.random.default_rng(1).normal(size=(WIDTH, WIDTH)).astype(np.float32)

    def function(*args: Any) -> Any:
        cotangent, gradients = backward(*args)
        return cotangent @ jnp.asarray(constant), gradients

    hold_equal(function)
    _, first, last = split(function)
    assert [len(part.consts_dir) for part in (first, last)] == [1, 0]


def test_a_gradient_that_is_there_already_is_added_up_at_once() -> None:
    def function(first: Any, second: Any, x: Any, cotangent: Any, sums: Any) -> Any:
        backwards = jax.checkpoint(lambda *args: jnp.tanh(args[2] @ args[0]) @ args[1])
        gradients = jax.vjp(backwards, first, second, x)[1](cotangent)
        return gradients[2], [total + part for total, part in zip(sums, gradients[:2], strict=True)]

    hold_equal(function)
    stage, first, last = split(function)
    assert set(stage.outvars) <= set(first.outvars)
    assert (last.outvars, last.invars) == ([], [])


def test_results_that_are_passed_through_or_known_are_given_by_one_part() -> None:
    hold_equal(lambda first, second, x, cotangent, sums: (cotangent, [sums[0], jnp.float32(2.0)]))
