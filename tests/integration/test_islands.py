"""Parts of a program that are written for each device (`jax.shard_map`) stay as they are; what is around is planned."""

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from alpa_cfp import PlanOptions, autoshard
from alpa_cfp.spmd.errors import NestedIslandError
from alpa_cfp.spmd.partition.local_ops import HANDLERS
from integration.constrained import (
    ESTIMATE,
    Inner,
    assert_equals_serial,
    batch,
    mesh,
    scanned,
    serial,
    step_with,
    weights,
)
from integration.serial import assert_equal_up_to_rounding

pytestmark = pytest.mark.slow


def island(on: Mesh) -> Inner:
    """A layer that is written for each device, with every kind of collective, on the value called "hidden"."""

    def per_device(hidden: jax.Array) -> jax.Array:
        position = lax.axis_index("model")
        summed = lax.psum(hidden.sum(1, keepdims=True), "model") + 0 * position
        moved = lax.ppermute(hidden, "data", [(0, 1), (1, 0)])
        gathered = lax.all_gather(moved, "data", tiled=True)
        part = lax.psum_scatter(gathered, "data", tiled=True)
        turned = lax.all_to_all(part, "model", 0, 1, tiled=True)
        return lax.all_to_all(turned, "model", 1, 0, tiled=True) + summed

    def inner(name: str, value: jax.Array) -> jax.Array:
        if name != "hidden":
            return value
        specs = P("data", "model")
        return jax.shard_map(per_device, mesh=on, in_specs=(specs,), out_specs=specs, check_vma=False)(value)

    return inner


@pytest.mark.parametrize(("made", "costs"), [(step_with, "estimate"), (step_with, "measure"), (scanned, "estimate")])
def test_a_part_that_is_written_for_each_device_is_kept_as_it_is(
    made: Callable[[Inner], Callable[..., Any]], costs: Any, tmp_path: Path
) -> None:
    on = mesh(2, 2)
    step, args = made(island(on)), (weights(), batch())
    option = PlanOptions(costs=costs, database=tmp_path / "profiles.sqlite", samples=1, refine=1, progress=False)
    plan = autoshard(step, on, *args, option=option)
    text = plan.jit(step).compile(*args).as_text()
    assert all(f" {name}(" in text for name in ("collective-permute", "all-to-all", "all-gather", "reduce-scatter"))
    assert_equals_serial(step, on, plan, *args)


def test_a_part_that_is_written_for_one_axis_alone_is_computed_along_the_others_alike() -> None:
    on = mesh(2, 2)

    def mean(x: jax.Array) -> jax.Array:
        return x - lax.pmean(x, "data")

    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        kept = jax.shard_map(mean, mesh=on, in_specs=P("data"), out_specs=P("data"), axis_names={"data"})
        return jnp.tanh(kept(x @ w)) @ w.T

    plan = autoshard(fn, on, batch(), weights()["up"], option=ESTIMATE)
    assert_equals_serial(fn, on, plan, batch(), weights()["up"])


@pytest.mark.parametrize("kind", ["a Fourier transform", "a loop"])
def test_a_part_for_each_device_is_kept_where_xla_partitions_the_rest(
    kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(HANDLERS, "stablehlo.fft")
    on = mesh(2, 2)
    written = functools.partial(island(on), "hidden")

    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        hidden = written(jnp.tanh(x @ w))
        if kind == "a loop":
            halved, _ = lax.while_loop(lambda c: c[1] < 3, lambda c: (written(c[0]) / 9, c[1] + 1), (hidden, 0))
            return halved @ w.T
        return jnp.abs(jnp.fft.fft(hidden, axis=0)) @ w.T

    args, kept = (batch(), weights()["up"]), (P("data"), P(None, "model"))
    plan = autoshard(fn, on, *args, in_shardings=kept, option=ESTIMATE)
    with caplog.at_level(logging.INFO):
        assert_equals_serial(fn, on, plan, *args)
    assert "left to XLA's partitioner" in caplog.text


def test_a_pallas_call_is_computed_whole_on_every_device_and_by_parts_in_a_shard_map() -> None:
    on = mesh(2, 2)

    def double(x: Any, y: Any) -> None:
        y[...] = x[...] * 2

    def kernel(x: jax.Array) -> jax.Array:
        return pallas.pallas_call(double, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)

    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        specs = P("data", "model")
        parts = jax.shard_map(kernel, mesh=on, in_specs=specs, out_specs=specs, check_vma=False)
        return parts(kernel(x @ w)) @ w.T

    plan = autoshard(fn, on, batch(), weights()["up"], option=ESTIMATE)
    assert_equals_serial(fn, on, plan, batch(), weights()["up"])


def test_a_planned_function_with_constraints_and_such_parts_is_an_inner_call_of_another_one() -> None:
    on = mesh(2, 2)

    @autoshard(on, option=ESTIMATE, in_shardings=P("data"), out_shardings=P(None, "model"))
    def planned(x: jax.Array) -> jax.Array:
        hidden = lax.with_sharding_constraint(jnp.tanh(x @ x.T), P("data", P.UNCONSTRAINED))
        return island(on)("hidden", hidden)

    def outer(x: jax.Array) -> jax.Array:
        return planned(x * 2) + 1

    expected = serial(lambda x: planned.fn(x * 2) + 1, on, batch())
    assert planned.plan_for(batch()).out_shardings == {"result": P(None, "model")}
    assert_equal_up_to_rounding(np.asarray(jax.jit(outer)(batch())), expected)


def test_a_part_for_each_device_inside_another_one_is_an_error_with_words() -> None:
    on = mesh(2, 2)

    def inner(x: jax.Array) -> jax.Array:
        return jax.shard_map(
            lambda x: x * 2, in_specs=P(None, "model"), out_specs=P(None, "model"), axis_names={"model"}
        )(x)

    def fn(x: jax.Array) -> jax.Array:
        return jax.shard_map(inner, mesh=on, in_specs=P("data"), out_specs=P("data"), axis_names={"data"})(x)

    with pytest.raises(NestedIslandError, match=r"inside a jax.shard_map cannot be planned around"):
        autoshard(fn, on, batch(), option=ESTIMATE)
