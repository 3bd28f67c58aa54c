"""What a program and its user say of shardings is kept by the plan, and the program stays equal to the serial run."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from alpa_cfp import Plan, PlanOptions, autoshard
from alpa_cfp.errors import AutoshardError
from alpa_cfp.spmd.errors import ForeignMeshError
from integration.constrained import (
    AXES,
    ESTIMATE,
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


def obeys(spec: P, asked: P, rank: int) -> bool:
    """Whether a sharding is what is asked, in each dim of which something is."""
    pairs = zip([*spec, *[None] * rank], [*asked, *[None] * rank][:rank], strict=False)
    return all(wanted is P.UNCONSTRAINED or wanted == own for own, wanted in pairs)


@st.composite
def specs(draw: st.DrawFn, rank: int = 2) -> P | None:
    """What is asked of an array: nothing, or of each dim that it is whole, split by axes, or free."""
    if draw(st.booleans()):
        return None
    axes = list(draw(st.permutations(AXES)))
    entries: list[Any] = []
    for _ in range(rank):
        kind = draw(st.sampled_from(["free", "whole", "one", "two"]))
        count = min({"free": 0, "whole": 0, "one": 1, "two": 2}[kind], len(axes))
        taken, axes = axes[:count], axes[count:]
        entries.append(
            P.UNCONSTRAINED if kind == "free" else None if not taken else taken[0] if count == 1 else (*taken,)
        )
    return P(*entries)


@settings(max_examples=12, deadline=None)
@given(
    inputs=st.fixed_dictionaries({"up": specs(), "down": specs(), "out": specs(), "x": specs()}),
    outputs=st.fixed_dictionaries({"up": specs(), "down": specs(), "y": specs()}),
    inner=st.fixed_dictionaries({"hidden": specs(), "y": specs()}),
    donated=st.booleans(),
)
def test_whatever_is_asked_the_plan_obeys_and_equals_the_serial_run(
    inputs: dict[str, P | None], outputs: dict[str, P | None], inner: dict[str, P | None], donated: bool
) -> None:
    def constrained(name: str, value: jax.Array) -> jax.Array:
        return value if inner[name] is None else lax.with_sharding_constraint(value, inner[name])

    on, step, args = mesh(2, 4), step_with(constrained), (weights(), batch())
    params = {name: inputs[name] for name in ("up", "down", "out")}
    results = {"up": outputs["up"], "down": outputs["down"], "out": None}, None, outputs["y"]
    plan = autoshard(
        step, on, *args, in_shardings=(params, inputs["x"]), out_shardings=results,
        donate_argnums=0 if donated else (), option=ESTIMATE,
    )  # fmt: skip
    asked = {f"args[0]['{name}']": params[name] for name in params} | {"args[1]": inputs["x"]}
    asked |= {f"result[0]['{name}']": outputs[name] for name in ("up", "down")} | {"result[2]": outputs["y"]}
    found = plan.in_shardings | plan.out_shardings
    for path, wanted in asked.items():
        assert wanted is None or obeys(found[path], wanted, 2), path
    assert_equals_serial(step, on, Plan.from_json(plan.to_json()), *args)


def test_a_measured_plan_obeys_too(tmp_path: Path) -> None:
    step = step_with(lambda name, value: lax.with_sharding_constraint(value, P("data", P.UNCONSTRAINED)))
    option = PlanOptions(database=tmp_path / "profiles.sqlite", samples=1, refine=2, progress=False)
    on, args, asked = mesh(2, 2), (weights(), batch()), {"up": P(None, "model"), "down": None, "out": P()}
    plan = autoshard(step, on, *args, in_shardings=(asked, P("data")), donate_argnums=0, option=option)
    assert plan.in_shardings["args[0]['up']"] == plan.out_shardings["result[0]['up']"] == P(None, "model")
    assert plan.in_shardings["args[0]['out']"] == plan.out_shardings["result[0]['out']"] == P()
    assert plan.in_shardings["args[1]"] == P("data")
    # The other dim is free: what is measured decides.
    assert obeys(plan.out_shardings["result[2]"], P("data", P.UNCONSTRAINED), 2)
    assert_equals_serial(step, on, plan, *args)


def test_an_inner_value_lies_as_it_is_asked() -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.with_sharding_constraint(jnp.tanh(x @ w), P("model", "data"))

    plan = autoshard(fn, mesh(2, 2), batch(), weights()["up"], option=ESTIMATE)
    assert plan.out_shardings == {"result": P("model", "data")}


def test_a_scalar_argument_beside_a_constraint_is_planned() -> None:
    """JAX says of it that it lies on a mesh without axes, as of the bits of a key, and that mesh is taken out."""

    def fn(step: Any, key: jax.Array, x: jax.Array, w: jax.Array) -> Any:
        noise = jax.random.normal(jax.random.fold_in(key, step), x.shape)
        return step + 1, lax.with_sharding_constraint(jnp.tanh((x + noise) @ w), NamedSharding(on, P("data")))

    on, args = mesh(2, 2), (jnp.int32(3), jax.random.key(0), batch(), weights()["up"])
    plan = autoshard(fn, on, *args, option=ESTIMATE)
    assert plan.out_shardings["result[1]"] == P("data")
    assert_equals_serial(fn, on, plan, *args)


def test_shardings_of_an_inner_jit_are_kept() -> None:
    on = mesh(2, 2)
    kept = {"in_shardings": (NamedSharding(on, P("data")), None), "out_shardings": NamedSharding(on, P(None, "model"))}

    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.jit(lambda x, w: jnp.tanh(x @ w), **kept)(x, w)

    args = batch(), weights()["up"]
    plan = autoshard(fn, on, *args, option=ESTIMATE)
    assert plan.out_shardings == {"result": P(None, "model")}
    assert plan.in_shardings["args[0]"] == P("data")
    assert_equals_serial(fn, on, plan, *args)


def test_an_argument_stays_where_it_lies_on_the_mesh_and_its_shape_alone_says_nothing() -> None:
    on, step = mesh(2, 2), step_with(lambda name, value: value)
    placed = jax.device_put(weights(), {name: NamedSharding(on, P("model")) for name in weights()})
    plan = autoshard(step, on, placed, batch(), donate_argnums=0, option=ESTIMATE)
    assert {plan.in_shardings[f"args[0]['{name}']"] for name in placed} == {P("model")}
    assert {plan.out_shardings[f"result[0]['{name}']"] for name in placed} == {P("model")}
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), placed)
    assert autoshard(step, on, shapes, batch(), donate_argnums=0, option=ESTIMATE).in_shardings != plan.in_shardings


def test_a_result_that_is_asked_elsewhere_takes_no_donated_buffer() -> None:
    on, step = mesh(2, 2), step_with(lambda name, value: value)
    plan = autoshard(
        step, on, weights(), batch(), donate_argnums=0, option=ESTIMATE,
        in_shardings=({"up": P("data"), "down": P("data"), "out": P("data")}, None),
        out_shardings=({"up": P("model"), "down": P("model"), "out": P("model")}, None, None),
    )  # fmt: skip
    assert plan.in_shardings["args[0]['up']"] == P("data")
    assert plan.out_shardings["result[0]['up']"] == P("model")
    assert_equals_serial(step, on, plan, weights(), batch())


def test_logical_constraints_of_flax_work_as_their_rules_say() -> None:
    on = mesh(2, 2)

    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return linen.with_logical_constraint(jnp.tanh(x @ w), ("batch", "mlp"), mesh=on)

    with linen.logical_axis_rules([("batch", "data"), ("mlp", "model")]):
        plan = autoshard(fn, on, batch(), weights()["up"], option=ESTIMATE)
        assert plan.out_shardings == {"result": P("data", "model")}
        assert_equals_serial(fn, on, plan, batch(), weights()["up"])


def test_constraints_inside_a_loop_over_layers_are_kept_in_each_of_them() -> None:
    step = scanned(lambda name, value: lax.with_sharding_constraint(value, P("data")))
    args = {name: weights()[name] for name in ("up", "down")}, batch()
    plan = autoshard(step, mesh(2, 2), *args, option=ESTIMATE)
    assert_equals_serial(step, mesh(2, 2), plan, *args)


def test_a_constraint_where_nothing_is_planned_is_left_out_with_a_warning() -> None:
    def fn(x: jax.Array) -> jax.Array:
        def halved(value: jax.Array) -> jax.Array:
            return lax.with_sharding_constraint(value / 2, P("data"))

        return lax.while_loop(lambda value: jnp.max(value) > 1, halved, x)

    plan = autoshard(fn, mesh(2, 2), batch(), option=ESTIMATE)
    assert plan.account is not None
    texts = [caveat.text for caveat in plan.account.caveats]
    assert "1 sharding constraints are in loops or branches inside which nothing is planned" in texts
    assert_equals_serial(fn, mesh(2, 2), plan, batch())


def test_a_dim_that_a_constraint_would_split_unevenly_stays_whole_with_a_warning() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return lax.with_sharding_constraint(x[:3] @ x.T, P("data", "model"))

    plan = autoshard(fn, mesh(2, 2), batch(), option=ESTIMATE)
    assert plan.out_shardings == {"result": P(None, "model")}
    assert plan.account is not None
    texts = [caveat.text for caveat in plan.account.caveats]
    assert "1 sharding constraints split dims into parts that are not equal; these dims stay whole" in texts


@pytest.mark.parametrize("how", ["under jax.set_mesh", "by its arguments"])
def test_a_program_in_explicit_mode_is_planned_and_what_it_writes_is_kept(how: str) -> None:
    on = mesh(2, 2, kind=AxisType.Explicit)
    specs = {"hidden": P("data", "model"), "y": P("data", None)}
    step = scanned(lambda name, value: jax.sharding.reshard(value, specs[name]))
    args: Any = {name: weights()[name] for name in ("up", "down")}, batch()
    if how == "by its arguments":
        args = jax.device_put(args, NamedSharding(on, P()))
        plan = autoshard(step, on, *args, option=ESTIMATE)
        result = plan.jit(step)(*args)
    else:
        with jax.set_mesh(on):
            plan = autoshard(step, on, *args, option=ESTIMATE)
            result = plan.jit(step)(*args)
    assert_equal_up_to_rounding(jax.tree.map(np.asarray, result), serial(step, on, *args))


def test_the_sharding_that_is_written_to_a_contraction_is_kept_and_those_that_jax_derives_are_free() -> None:
    on = mesh(2, 2, kind=AxisType.Explicit)

    def fn(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = jnp.dot(x, w, out_sharding=P("data", "model"))
        return y, jnp.tanh(x) @ w

    with jax.set_mesh(on):
        plan = autoshard(fn, on, batch(), weights()["up"], option=ESTIMATE)
        assert plan.out_shardings["result[0]"] == P("data", "model")
        assert plan.out_shardings["result[1]"] != P()  # as JAX derives it
        assert_equals_serial(fn, on, plan, batch(), weights()["up"])


def test_a_program_under_set_mesh_in_auto_mode_is_planned() -> None:
    on, step = mesh(2, 2), step_with(lambda name, value: lax.with_sharding_constraint(value, P("data")))
    with jax.set_mesh(on):
        plan = autoshard(step, on, weights(), batch(), option=ESTIMATE)
        assert_equals_serial(step, on, plan, weights(), batch())


def test_what_is_asked_over_another_mesh_is_an_error_that_names_both() -> None:
    other = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("rows", "columns"))
    named = NamedSharding(other, P("rows"))
    with pytest.raises(ForeignMeshError, match=r"the axes rows=2, columns=2, and is planned for .* data=2, model=2"):
        autoshard(lambda x: lax.with_sharding_constraint(x, named) + 1, mesh(2, 2), batch(), option=ESTIMATE)
    with pytest.raises(AutoshardError, match=r"its sharding is over the axes .*rows.*, and the plan is for"):
        autoshard(lambda x: x + 1, mesh(2, 2), batch(), in_shardings=named, option=ESTIMATE)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (P("data", None, "model"), r"args\[0\]: .* has more entries than an array of shape \(16, 32\) has dims"),
        (P("rows"), r"names the axis 'rows', and the mesh has 'data', 'model'"),
        (P(None, None), None),
        ({"x": P()}, "in_shardings is no prefix of the arguments"),
        ("data", r"args\[0\]: a str says nothing about the axes of the mesh"),
    ],
)
def test_a_sharding_that_cannot_be_is_an_error_with_words(asked: Any, message: str | None) -> None:
    def plan() -> Plan:
        return autoshard(jnp.tanh, mesh(2, 2), batch(), in_shardings=(asked,), option=ESTIMATE)

    if message is None:
        assert plan().in_shardings == {"args[0]": P()}
        return
    with pytest.raises(AutoshardError, match=message):
        plan()


def test_an_argument_that_cannot_be_split_evenly_is_an_error_with_words() -> None:
    with pytest.raises(AutoshardError, match=r"splits dim 0 of size 3 into 2 parts, which are not equal"):
        autoshard(jnp.tanh, mesh(2, 2), jnp.ones((3, 4)), in_shardings=P("data"), option=ESTIMATE)


def test_an_argument_that_lies_elsewhere_than_in_shardings_say_is_an_error_that_names_both() -> None:
    on = mesh(2, 2)
    x = jax.device_put(batch(), NamedSharding(on, P("data")))
    with pytest.raises(AutoshardError, match=r"in_shardings asks for .*model.* and the argument lies as .*data"):
        autoshard(jnp.tanh, on, x, in_shardings=P("model"), option=ESTIMATE)
    free = autoshard(jnp.tanh, on, x, in_shardings=P(P.UNCONSTRAINED, P.UNCONSTRAINED), option=ESTIMATE)
    assert_equals_serial(jnp.tanh, on, free, batch())
