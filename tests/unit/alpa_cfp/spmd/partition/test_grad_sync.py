"""Gradients whose sum over devices is made once a step: only where that gives the same numbers."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from alpa_cfp.spmd.partition import partition
from alpa_cfp.spmd.partition.shardy import partition_with_shardy
from unit.alpa_cfp.spmd.helpers import (
    MESH_2X2,
    MESH_2X4,
    annotate,
    assert_parts_equal,
    load,
    lower,
    place,
    split,
    values_of,
)
from unit.alpa_cfp.spmd.partition.solved_programs import solve

pytestmark = pytest.mark.slow

_RNG = np.random.default_rng(5)
DATA, COTANGENT = (_RNG.standard_normal(shape).astype(np.float32) for shape in ((8, 4), (8, 16)))
OLD = _RNG.standard_normal((4, 16)).astype(np.float32)
BATCH = ("xy", "")


def partition_step(
    step: Callable[..., Any],
    arguments: tuple[Any, ...],
    accumulators: tuple[int, ...] = (0,),
    mesh=MESH_2X4,
    batch=BATCH,
):
    """`step(old, data, cotangent, ...)` for one micro-batch, data parallel, and its partitioned program."""
    module = lower(step, arguments)
    inputs = [split(mesh, *[""] * np.ndim(old)) for old in arguments]
    inputs[1], inputs[2] = split(mesh, *batch), split(mesh, *batch)
    outputs = [split(mesh, *[""] * len(shape.dims)) for shape in module.shape.results]
    annotate(module, mesh, inputs, outputs)
    module.partitioned = partition_with_shardy(module, accumulators)
    return module, module.partitioned


def assert_steps_equal_serial(module, step, arguments, monkeypatch, *, steps: int = 3) -> None:
    """`steps` micro-batches from zeros, the sum made after the last, give what one device accumulates."""
    executable = load(module)
    skip = module.name + "XLA_SKIP_NCCL_COLLECTIVE_IDS"
    old, expected = np.zeros_like(arguments[0]), np.zeros_like(arguments[0])
    placed = place(executable, [old, *arguments[1:]])
    results, serial = [], []
    for number in range(steps):
        monkeypatch.setenv(skip, "" if number == steps - 1 else ".1.")
        if number == steps - 1:
            monkeypatch.delenv(skip)
        results = executable.execute_sharded_on_local_devices(placed)
        serial = values_of(step, (expected, *arguments[1:]))
        placed[0], expected = results[0], serial[0]
    assert_parts_equal(results, serial)


def gradient(data: jax.Array, cotangent: jax.Array) -> jax.Array:
    return data.T @ cotangent


LINEAR: dict[str, Callable[..., jax.Array]] = {
    "the gradient itself": lambda g: g,
    "scaled by a constant": lambda g: g * 0.25,
    "divided by a constant": lambda g: g / 3,
    "negated": lambda g: -g,
    "transposed twice": lambda g: jnp.cos(jnp.ones((16, 4))).T * (g.T * 2).T,
    "reshaped": lambda g: (g.reshape(64) * 2).reshape(4, 16),
    "reversed": lambda g: jnp.flip(g, 1),
    "concatenated parts": lambda g: jnp.concatenate([g[:, 8:], g[:, :8]], 1),
    "where a mask says": lambda g: jnp.where(np.arange(16) % 2 == 0, g, -g),
}


@pytest.mark.parametrize("name", LINEAR)
def test_what_is_linear_in_the_gradient_is_summed_once_a_step(name, monkeypatch):
    def step(old, data, cotangent):
        return old + LINEAR[name](gradient(data, cotangent))

    arguments = (OLD, DATA, COTANGENT)
    module, program = partition_step(step, arguments)
    assert program.unreduced_outputs[0]
    assert program.collectives == ()
    assert_steps_equal_serial(module, step, arguments, monkeypatch)


def test_a_gradient_of_bfloat16_is_summed_once_a_step_as_float32():
    def step(old, data, cotangent):
        narrow = gradient(data.astype(jnp.bfloat16), cotangent.astype(jnp.bfloat16))
        return old + narrow.astype(jnp.float32)

    module, program = partition_step(step, (OLD, DATA, COTANGENT))
    assert program.unreduced_outputs[0]
    results = load(module).execute_sharded_on_local_devices(place(load(module), (OLD * 0, DATA, COTANGENT)))
    assert_parts_equal(results, values_of(step, (OLD * 0, DATA, COTANGENT)), tolerance=4e-2)


def test_the_two_gradients_of_a_tied_weight_are_summed_together(monkeypatch):
    def step(old, data, cotangent):
        return old + (gradient(data, cotangent) + gradient(data * 2, jnp.tanh(cotangent)))

    module, program = partition_step(step, (OLD, DATA, COTANGENT))
    assert program.unreduced_outputs[0]
    assert program.collectives == ()
    assert_steps_equal_serial(module, step, (OLD, DATA, COTANGENT), monkeypatch)


def test_an_embeddings_gradient_is_summed_once_a_step(monkeypatch):
    tokens = np.array([1, 3, 3, 0, 2, 1, 99, 3], np.int32).reshape(8, 1)

    def step(old, tokens, cotangent):
        return old + jnp.zeros((4, 16)).at[tokens[:, 0]].add(cotangent)

    module, program = partition_step(step, (OLD, tokens, COTANGENT))
    assert program.unreduced_outputs[0]
    assert_steps_equal_serial(module, step, (OLD, tokens, COTANGENT), monkeypatch)


NONLINEAR: dict[str, Callable[..., Any]] = {
    "clipped by value": lambda g: jnp.clip(g, -0.1, 0.1),
    "clipped by norm": lambda g: g / jnp.maximum(1.0, jnp.sqrt((g * g).sum())),
    "squared": lambda g: g * g,
    "with a number added": lambda g: g + 1.0,
    "its error function": lambda g: lax.erf(g),
    "its arc tangent": lambda g: lax.atan(g),
    "its absolute value": lambda g: abs(g),
    "narrowed": lambda g: g.astype(jnp.bfloat16).astype(jnp.float32),
    "as a divisor": lambda g: 1.0 / (g + 0.0),
    "chosen by itself": lambda g: jnp.where(g > 0, g, 2 * g),
    "in a loop": lambda g: lax.fori_loop(0, 2, lambda i, c: c * g, jnp.ones_like(g)),
}


@pytest.mark.parametrize("name", NONLINEAR)
def test_what_is_not_linear_in_the_gradient_is_reduced_at_once(name):
    def step(old, data, cotangent):
        return old + NONLINEAR[name](gradient(data, cotangent))

    module, program = partition_step(step, (OLD, DATA, COTANGENT))
    assert program.unreduced_outputs == ((),)
    arguments = (OLD, DATA, COTANGENT)
    results = load(module).execute_sharded_on_local_devices(place(load(module), arguments))
    assert_parts_equal(results, values_of(step, arguments))


def _old_used_twice(old, data, cotangent):
    return old + gradient(data, cotangent), old.sum()


def _shown_by_another_result(old, data, cotangent):
    total = old + gradient(data, cotangent)
    return total, total


def _shown_behind_a_barrier(old, data, cotangent):
    total = lax.optimization_barrier(old + gradient(data, cotangent))
    return total, total


def _used_by_a_metric(old, data, cotangent):
    g = gradient(data, cotangent)
    return old + g, (g * g).sum()


def _one_of_two_terms(old, data, cotangent):
    return (old + (gradient(data, cotangent) + jnp.ones((4, 16))),)


def _not_a_parameter(old, data, cotangent):
    return (jnp.tanh(old) + gradient(data, cotangent),)


@pytest.mark.parametrize(
    "step",
    [
        _old_used_twice,
        _shown_by_another_result,
        _shown_behind_a_barrier,
        _used_by_a_metric,
        _one_of_two_terms,
        _not_a_parameter,
    ],
)
def test_a_sum_that_something_else_needs_is_made_at_once(step):
    arguments = (OLD, DATA, COTANGENT)
    module, program = partition_step(step, arguments)
    assert not any(program.unreduced_outputs)
    results = load(module).execute_sharded_on_local_devices(place(load(module), arguments))
    assert_parts_equal(results, values_of(step, arguments))


def test_integers_are_summed_at_once():
    def step(old, data, cotangent):
        return old + lax.dot_general(data, cotangent, (((0,), (0,)), ((), ())))

    arguments = tuple((array * 10).astype(np.int32) for array in (OLD, DATA, COTANGENT))
    module, program = partition_step(step, arguments)
    assert program.unreduced_outputs == ((),)
    results = load(module).execute_sharded_on_local_devices(place(load(module), arguments))
    assert_parts_equal(results, values_of(step, arguments))


def test_a_maximum_over_devices_is_made_at_once():
    def step(old, data, cotangent):
        return old + jnp.broadcast_to(data.max(0)[:, None], (4, 16))

    module, program = partition_step(step, (OLD, DATA, COTANGENT))
    assert program.unreduced_outputs == ((),)
    arguments = (OLD, DATA, COTANGENT)
    assert_parts_equal(
        load(module).execute_sharded_on_local_devices(place(load(module), arguments)), values_of(step, arguments)
    )


def test_terms_that_are_partial_over_different_axes_are_summed_at_once():
    def step(old, data, cotangent, other):
        return old + (gradient(data, cotangent) + gradient(other, other @ jnp.ones((4, 16))))

    arguments = (OLD, DATA, COTANGENT, _RNG.standard_normal((8, 4)).astype(np.float32))
    module = lower(step, arguments)
    inputs = [split(MESH_2X2, *dims) for dims in (("", ""), ("x", ""), ("x", ""), ("y", ""))]
    annotate(module, MESH_2X2, inputs, [split(MESH_2X2, "", "")])
    module.partitioned = partition_with_shardy(module, (0,))
    assert module.partitioned.unreduced_outputs == ((),)
    results = load(module).execute_sharded_on_local_devices(place(load(module), arguments))
    assert_parts_equal(results, values_of(step, arguments))


def test_a_gradient_that_is_spread_over_the_axis_it_is_partial_over_is_summed_at_once():
    # The parts of the broadcast result hold other elements on each device: nothing there belongs together.
    def step(old, data, cotangent):
        return old + jnp.broadcast_to(cotangent.sum(0), (4, 16))

    arguments = (OLD, DATA, COTANGENT)
    module = lower(step, arguments)
    inputs = [split(MESH_2X2, "x", ""), split(MESH_2X2, "", ""), split(MESH_2X2, "x", "")]
    annotate(module, MESH_2X2, inputs, [split(MESH_2X2, "x", "")])
    module.partitioned = partition_with_shardy(module, (0,))
    results = load(module).execute_sharded_on_local_devices(place(load(module), arguments))
    assert module.partitioned.unreduced_outputs == ((),)
    assert_parts_equal(results, values_of(step, arguments))


def test_only_the_results_that_are_named_are_left_unreduced():
    def step(old, data, cotangent):
        g = gradient(data, cotangent)
        return old + g * 2, g.sum()

    _, program = partition_step(step, (OLD, DATA, COTANGENT), accumulators=())
    assert program.unreduced_outputs == ((), ())


def test_a_split_gradient_is_summed_over_the_other_axis_only(monkeypatch):
    def step(old, data, cotangent):
        return old + gradient(data, cotangent)

    arguments = (OLD, DATA, COTANGENT)
    module = lower(step, arguments)
    inputs = [split(MESH_2X4, "", "y"), split(MESH_2X4, "x", ""), split(MESH_2X4, "x", "y")]
    annotate(module, MESH_2X4, inputs, [split(MESH_2X4, "", "y")])
    module.partitioned = partition_with_shardy(module, (0,))
    assert [axis.index for axis in module.partitioned.unreduced_outputs[0]] == [0]
    assert_steps_equal_serial(module, step, arguments, monkeypatch)


def test_a_sum_over_one_axis_of_a_sum_over_another_is_left_over_both(monkeypatch):
    # Partial over x from the contraction, then over y from the sum of a dim that y splits.
    def step(old, data, cotangent):
        return old + gradient(data, cotangent).sum(1)

    arguments = (OLD[:, 0], DATA, COTANGENT)
    module = lower(step, arguments)
    inputs = [split(MESH_2X4, ""), split(MESH_2X4, "x", ""), split(MESH_2X4, "x", "y")]
    annotate(module, MESH_2X4, inputs, [split(MESH_2X4, "")])
    module.partitioned = partition_with_shardy(module, (0,))
    assert_steps_equal_serial(module, step, arguments, monkeypatch)


WHOLE = split(MESH_2X4, "", "")


def _solved_step(step, arguments, inputs, output, ops):
    """The solved step, left without the sum of its first result."""
    module = solve(step, arguments, inputs, [output], ops)
    module.partitioned = partition(module, (0,))
    return module


@pytest.mark.parametrize("reshardings", [0, 1])
def test_the_gradient_of_a_solved_step_is_summed_once_a_step_also_behind_constraints(reshardings, monkeypatch):
    def step(old, data, cotangent):
        g = jax.lax.dot_general(data, cotangent, (((0,), (0,)), ((), ())))
        for _ in range(reshardings):
            g = lax.optimization_barrier(g)
        return old + g

    batch = split(MESH_2X4, *BATCH)
    module = _solved_step(step, (OLD, DATA, COTANGENT), [WHOLE, batch, batch], WHOLE, [WHOLE] * (2 + reshardings))
    assert module.partitioned.partitioner == "shardy"
    assert module.partitioned.collectives == ()
    assert_steps_equal_serial(module, step, (OLD, DATA, COTANGENT), monkeypatch)


def test_a_gradient_that_is_cut_along_another_axis_before_it_is_added_is_summed_once_a_step(monkeypatch):
    def step(old, data, cotangent):
        return old + lax.optimization_barrier(jax.lax.dot_general(data, cotangent, (((0,), (0,)), ((), ()))))

    batch, columns = split(MESH_2X4, "x", ""), split(MESH_2X4, "", "y")
    module = _solved_step(step, (OLD, DATA, COTANGENT), [columns, batch, batch], columns, [WHOLE, columns, columns])
    assert module.partitioned.collectives == ()
    assert [axis.index for axis in module.partitioned.unreduced_outputs[0]] == [0]
    assert_steps_equal_serial(module, step, (OLD, DATA, COTANGENT), monkeypatch)


def test_a_gradient_that_is_accumulated_in_parts_is_reduce_scattered_in_every_micro_batch(monkeypatch):
    def step(old, data, cotangent):
        return old + lax.optimization_barrier(jax.lax.dot_general(data, cotangent, (((0,), (0,)), ((), ()))))

    batch, parts = split(MESH_2X4, *BATCH), split(MESH_2X4, "", "xy")
    module = _solved_step(step, (OLD, DATA, COTANGENT), [parts, batch, batch], parts, [WHOLE, parts, parts])
    assert [each.kind for each in module.partitioned.collectives] == ["reduce-scatter"]
    assert_steps_equal_serial(module, step, (OLD, DATA, COTANGENT), monkeypatch)
