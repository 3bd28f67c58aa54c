"""`autoshard` and `Plan.jit`: a function that is planned for a mesh gives what plain `jax.jit` gives on one device."""

import dataclasses
import functools
import logging
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from alpa_cfp import CFPOption, Plan, autoshard
from alpa_cfp.database import ProfileDatabase
from alpa_cfp.errors import AutoshardError, NoDevicesError, PlanError
from alpa_cfp.plan.plan_report import Alternative, Communication
from alpa_cfp.report import words
from alpa_cfp.search import MemoryBudgetError
from alpa_cfp.spmd.compile.executable import MeshExecutable
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.sizes import Size
from alpa_on_jax.errors import HostCallbackError
from integration.serial import assert_equal_up_to_rounding, expected_steps, run_serially

pytestmark = pytest.mark.slow

Tree = dict[str, jax.Array]


def mesh(*shape: int, devices: slice = slice(None)) -> Mesh:
    """A mesh of this process' devices, the first ones of `devices`."""
    chosen = np.array(jax.devices()[devices][: math.prod(shape)])
    return Mesh(chosen.reshape(shape), ("data", "model")[: len(shape)])


def estimate(memory_budget_bytes: int | None = None) -> CFPOption:
    return CFPOption(costs="estimate", memory_budget_bytes=memory_budget_bytes)


def numpy(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)


def copied(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)


def bytes_of(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def tight(fn: Callable[..., Any], on: Mesh, *args: Any) -> CFPOption:
    """The option that leaves a device no more memory than the plan that needs the least: what is donated is split."""
    with pytest.raises(MemoryBudgetError) as caught:
        autoshard(fn, on, *args, donate_argnums=0, option=estimate(1))
    return estimate(caught.value.least_bytes)


def assert_equals_serial(fn: Callable[..., Any], on: Mesh, *args: Any, option: CFPOption) -> Plan:
    """Plan `fn`, whose first argument is donated, run it, and hold it against the serial run."""
    plan = autoshard(fn, on, *args, donate_argnums=0, option=option)
    assert_equal_up_to_rounding(numpy(plan.jit(fn)(*copied(args))), run_serially(fn, *args))
    return plan


def layers(count: int, width: int = 32) -> Tree:
    """The weights of `count` layers, stacked."""
    keys = jax.random.split(jax.random.key(0), 2)
    return {
        "up": jax.random.normal(keys[0], (count, width, 2 * width)) / 8,
        "down": jax.random.normal(keys[1], (count, 2 * width, width)) / 8,
    }


def layer(x: jax.Array, weights: Tree) -> tuple[jax.Array, None]:
    return x + jnp.tanh(x @ weights["up"]) @ weights["down"], None


def inputs(batch: int = 16, width: int = 32) -> jax.Array:
    return jax.random.normal(jax.random.key(1), (batch, width))


def scanned_step(remat: bool, weights: Tree, x: jax.Array) -> tuple[Tree, jax.Array]:
    """A training step of a scan over layers."""

    def loss(weights: Tree) -> jax.Array:
        body = jax.checkpoint(layer, prevent_cse=False) if remat else layer
        return jnp.mean(lax.scan(body, x, weights)[0] ** 2)

    value, grads = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, weights, grads), value


@pytest.mark.parametrize(("model", "shape"), [("mlp", (8,)), ("mlp", (2, 2)), ("gpt", (8,))])
def test_training_steps_of_a_model_with_a_split_state_equal_the_serial_ones(model: str, shape: tuple[int, ...]) -> None:
    built = build(model)
    step = train_step(built, jax.value_and_grad)
    option = tight(step, mesh(*shape), built.state, built.batch)
    plan = autoshard(step, mesh(*shape), built.state, built.batch, donate_argnums=0, option=option)
    assert any(spec != PartitionSpec() for path, spec in plan.in_shardings.items() if path.startswith("args[0]"))
    planned, state = plan.jit(step), copied(built.state)
    for expected in expected_steps(model, None, 2):
        state, metrics, grads = planned(state, built.batch)
        assert_equal_up_to_rounding(numpy((state, metrics, grads)), (expected.state, expected.metrics, expected.grads))


def squared(weight: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A training step of one matrix product."""
    loss, grad = jax.value_and_grad(lambda weight: jnp.mean((jnp.tanh(x @ weight) - 1) ** 2))(weight)
    return weight - 0.1 * grad, loss


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    """A measured plan of `squared` on 4 devices, and the database of its profiles."""
    path = tmp_path_factory.mktemp("profiles") / "profiles.sqlite"
    option = CFPOption(database=path, samples=2, refine=2, progress=False)
    return autoshard(squared, mesh(4), layers(1)["up"][0], inputs(), option=option), path


def test_a_measured_plan_equals_the_serial_run_and_running_it_measures_nothing(measured: tuple[Plan, Path]) -> None:
    plan, path = measured
    with ProfileDatabase.open(path, readonly=True) as database:
        before = list(database.items())
    assert sum(len(profile.samples_s) for _, profile in before) > 0
    arguments = layers(1)["up"][0], inputs()
    assert_equal_up_to_rounding(numpy(plan.jit(squared)(*arguments)), run_serially(squared, *arguments))
    with ProfileDatabase.open(path, readonly=True) as database:
        assert list(database.items()) == before


def test_a_plan_is_made_of_recorded_profiles_without_devices(measured: tuple[Plan, Path]) -> None:
    plan, path = measured
    option = CFPOption(costs="replay", database=path, samples=2, refine=2, progress=False)
    again = autoshard(squared, AbstractMesh((4,), ("data",)), layers(1)["up"][0], inputs(), option=option)
    assert again.strategies == plan.strategies
    assert again.in_shardings == plan.in_shardings


def test_a_large_batch_is_split_and_results_lie_on_the_users_mesh() -> None:
    built = build("mlp", Size(batch=4096, hidden=64))
    step, on = train_step(built, jax.value_and_grad), mesh(8)
    plan = autoshard(step, on, built.state, built.batch, option=estimate())
    assert plan.in_shardings["args[1]['x']"] == PartitionSpec("data")
    planned = plan.jit(step)
    state, _, _ = planned(built.state, built.batch)
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        assert leaf.sharding == plan.named_shardings()["result[0]" + jax.tree_util.keystr(path)]
        assert leaf.sharding.mesh == on
    assert planned.as_text().count(" all-reduce(") == 1


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_a_differentiated_scan_over_layers_equals_the_serial_run(shape: tuple[int, ...], remat: bool) -> None:
    fn, args = functools.partial(scanned_step, remat), (layers(3), inputs())
    plan = assert_equals_serial(fn, mesh(*shape), *args, option=tight(fn, mesh(*shape), *args))
    assert any(spec != PartitionSpec() for spec in plan.in_shardings.values())


def test_a_scan_over_layers_has_as_many_blocks_as_the_layers_written_one_by_one() -> None:
    def one_by_one(weights: Tree, x: jax.Array) -> tuple[Tree, jax.Array]:
        def loss(weights: list[Tree]) -> jax.Array:
            result = x
            for each in weights:
                result, _ = layer(result, each)
            return jnp.mean(result**2)

        parts = [jax.tree.map(lambda leaf, i=i: leaf[i], weights) for i in range(3)]
        value, grads = jax.value_and_grad(loss)(parts)
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *grads)
        return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, weights, stacked), value

    def blocks(fn: Callable[..., Any]) -> int:
        return len(autoshard(fn, mesh(4), layers(3), inputs(), option=estimate()).strategies)

    assert blocks(one_by_one) == blocks(functools.partial(scanned_step, False)) == 6
    assert blocks(functools.partial(scanned_step, True)) == 6


def test_loops_of_every_kind_equal_the_serial_run(caplog: pytest.LogCaptureFixture) -> None:
    def fn(weights: Tree, x: jax.Array) -> Any:
        nested = lax.scan(lambda carry, _: lax.scan(layer, carry, weights), x, None, length=2)[0]
        counted = lax.fori_loop(0, 3, lambda i, y: y * 0.9 + i, x) @ weights["up"][0]
        mapped = lax.map(lambda row: jnp.tanh(row) @ weights["up"][1], x)
        backwards = lax.scan(layer, x, weights, reverse=True)[0]
        cumulative = lax.scan(lambda carry, row: (carry + row, carry), jnp.zeros(32), x)
        halved, steps = lax.while_loop(
            lambda state: jnp.max(jnp.abs(state[0])) > 1e-3, lambda state: (state[0] / 2, state[1] + 1), (x, 0)
        )
        return nested, counted, mapped, backwards, cumulative, halved @ weights["up"][2], steps

    with caplog.at_level(logging.WARNING, logger="alpa_cfp"):
        assert_equals_serial(fn, mesh(4), layers(3), inputs(), option=estimate())
    assert [record.getMessage() for record in caplog.records if "1 loops" in record.getMessage()]


def test_donated_arrays_are_used_up_and_others_are_not() -> None:
    fn = functools.partial(scanned_step, False)
    expected = run_serially(fn, layers(3), inputs())
    plan = autoshard(fn, mesh(4), layers(3), inputs(), donate_argnums=0, option=estimate())
    planned = plan.jit(fn)
    weights, x = layers(3), inputs()
    new, _ = planned(weights, x)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(weights))
    assert not x.is_deleted()
    assert planned.memory_bytes()["aliased"] >= bytes_of(new)
    on_host = numpy(layers(3))
    assert_equal_up_to_rounding(numpy(planned(on_host, x)), expected)
    np.testing.assert_array_equal(on_host["up"], np.asarray(layers(3)["up"]))
    lying = jax.device_put(layers(3), planned.input_shardings[0][0])
    assert_equal_up_to_rounding(numpy(planned(lying, x)), expected)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(lying))


def test_an_array_that_is_given_and_donated_twice_is_copied() -> None:
    def fn(a: jax.Array, b: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array]:
        return a + 1, b * 2 + c

    x = inputs()
    planned = autoshard(fn, mesh(4), x, x, x, donate_argnums=(0, 1), option=estimate()).jit(fn)
    expected = run_serially(fn, x, x, x)
    lying = jax.device_put(copied(x), planned.compile(x, x, x).input_shardings[0][0])
    assert_equal_up_to_rounding(numpy(planned(lying, lying, lying)), expected)


def test_arrays_that_lie_as_planned_are_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    fn = functools.partial(scanned_step, False)
    planned = autoshard(fn, mesh(4), layers(3), inputs(), option=estimate()).jit(fn)
    weights, x = jax.device_put((layers(3), inputs()), planned.compile(layers(3), inputs()).input_shardings[0])
    monkeypatch.setattr(jax, "device_put", lambda *args, **kwargs: pytest.fail("an array was moved"))
    new, _ = planned(weights, x)
    planned(new, x)


def test_further_calls_with_arrays_that_lie_as_planned_go_through_no_python(monkeypatch: pytest.MonkeyPatch) -> None:
    fn = functools.partial(scanned_step, False)
    planned = autoshard(fn, mesh(4), layers(3), inputs(), donate_argnums=0, option=estimate()).jit(fn)
    weights, x = jax.device_put((layers(3), inputs()), planned.compile(layers(3), inputs()).input_shardings[0])
    expected, given = layers(3), weights
    results = []
    with monkeypatch.context() as patched:
        for call in range(3):
            weights, loss = planned(weights, x)
            results.append(loss)
            if call == 0:  # from now on
                patched.setattr(MeshExecutable, "run", lambda *args: pytest.fail("Python has run the program"))
    for loss in results:
        expected, serial_loss = run_serially(fn, expected, inputs())
        assert_equal_up_to_rounding(np.asarray(loss), serial_loss)
    assert_equal_up_to_rounding(numpy(weights), expected)
    assert weights["up"].sharding == planned.output_shardings[0]["up"]
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given))
    with pytest.raises(PlanError, match="was float32"):
        planned(jax.tree.map(lambda leaf: leaf[:1], weights), x)


def test_arrays_that_lie_elsewhere_are_moved_in_every_call() -> None:
    fn = functools.partial(scanned_step, False)
    planned = autoshard(fn, mesh(4), layers(3), inputs(), option=estimate()).jit(fn)
    expected = run_serially(fn, layers(3), inputs())
    lying = planned.compile(layers(3), inputs()).input_shardings[0]
    other = NamedSharding(mesh(4), PartitionSpec(None, "data"))
    for x in (inputs(), jax.device_put(inputs(), lying[1]), jax.device_put(inputs(), other), np.asarray(inputs())):
        for _ in range(3):
            assert_equal_up_to_rounding(numpy(planned(jax.device_put(layers(3), lying[0]), x)), expected)


def test_new_arrays_on_the_only_device_of_a_mesh_are_taken_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    fn = functools.partial(scanned_step, False)
    expected = run_serially(fn, layers(3), inputs())
    planned = autoshard(fn, mesh(1), layers(3), inputs(), donate_argnums=0, option=estimate()).jit(fn)
    planned.compile(layers(3), inputs())
    weights, x = layers(3), inputs()
    monkeypatch.setattr(jax, "device_put", lambda *args, **kwargs: pytest.fail("an array was moved"))
    assert_equal_up_to_rounding(numpy(planned(weights, x)), expected)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(weights))
    assert not x.is_deleted()


def test_bfloat16_equals_the_serial_run_in_bfloat16() -> None:
    def fn(weight: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ weight)

    weight, x = layers(1)["up"][0].astype(jnp.bfloat16), inputs(4096).astype(jnp.bfloat16)
    planned = autoshard(fn, mesh(8), weight, x, option=estimate()).jit(fn)
    result = planned(weight, x)
    assert result.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(result), run_serially(fn, weight, x))


def test_keyword_arguments_nested_pytrees_random_keys_and_numbers_are_what_they_are_for_jit() -> None:
    def fn(state: Any, *, rate: float, noise: dict[str, Any]) -> Any:
        (weights, count), unused = state
        keys = jax.random.split(noise["key"], 3)
        moved = jax.tree.map(lambda weight: weight - rate * jax.random.normal(keys[0], weight.shape), weights)
        return (
            {"weights": moved, "next": keys[1:], "old": unused, "same": noise["unused"], "three": 3},
            count + 1,
            2 * rate,
        )

    args: Any = ((layers(2), 3), None)
    kwargs: Any = {"rate": 0.5, "noise": {"key": jax.random.key(7), "unused": np.float32(1)}}
    planned = autoshard(fn, mesh(2, 2), args, **kwargs, option=estimate()).jit(fn)
    got, expected = planned(args, **kwargs), jax.jit(fn)(args, **kwargs)
    for result in (got, expected):
        assert jax.dtypes.issubdtype(result[0]["next"].dtype, jax.dtypes.prng_key)
        result[0]["next"] = jax.random.key_data(result[0]["next"])
    kinds = [[(leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves(result)] for result in (got, expected)]
    assert kinds[0] == kinds[1]
    assert_equal_up_to_rounding(numpy(got), numpy(expected))


def test_a_mesh_of_some_devices_in_another_order_is_used_as_it_is() -> None:
    on = mesh(4, devices=slice(6, 2, -1))
    fn = functools.partial(scanned_step, False)
    weights = layers(3)
    plan = autoshard(fn, on, weights, inputs(), donate_argnums=0, option=tight(fn, on, weights, inputs()))
    result = plan.jit(fn)(copied(weights), inputs())
    assert_equal_up_to_rounding(numpy(result), run_serially(fn, weights, inputs()))
    assert [device.id for device in result[1].sharding.mesh.devices.flat] == [6, 5, 4, 3]
    parts = {shard.device.id: shard for leaf in jax.tree.leaves(result[0]) for shard in leaf.addressable_shards}
    assert sorted(parts) == [3, 4, 5, 6]


def test_a_plan_for_an_abstract_mesh_runs_on_any_mesh_of_its_shape() -> None:
    fn = functools.partial(scanned_step, False)
    plan = autoshard(fn, AbstractMesh((4,), ("data",)), layers(3), inputs(), option=estimate())
    with pytest.raises(PlanError, match="Say on which devices"):
        plan.jit(fn)
    result = plan.jit(fn, mesh(4, devices=slice(4, 8)))(layers(3), inputs())
    assert_equal_up_to_rounding(numpy(result), run_serially(fn, layers(3), inputs()))


def test_shapes_are_enough_to_plan_and_to_compile() -> None:
    fn = functools.partial(scanned_step, True)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (layers(3), inputs()))
    plan = autoshard(fn, mesh(4), *shapes, option=estimate())
    assert plan.to_json() == autoshard(fn, mesh(4), layers(3), inputs(), option=estimate()).to_json()
    planned = plan.jit(fn).compile(*shapes)
    assert set(jax.tree.leaves(planned.input_shardings)) <= set(plan.named_shardings().values())
    assert jax.tree.structure(planned.output_shardings) == jax.tree.structure(fn(layers(3), inputs()))


OTHER_PROCESS = """
import logging, sys
import jax, jax.numpy as jnp, numpy as np
from alpa_cfp import Plan

logging.basicConfig(level=logging.INFO, stream=sys.stdout)

def step(weight, x):
    loss, grad = jax.value_and_grad(lambda weight: jnp.mean((jnp.tanh(x @ weight) - 1) ** 2))(weight)
    return weight - 0.1 * grad, loss

arguments = np.load(sys.argv[2])
weight, loss = Plan.load(sys.argv[1]).jit(step)(arguments["weight"], arguments["x"])
np.savez(sys.argv[3], weight=weight, loss=loss, devices=[device.id for device in weight.sharding.mesh.devices.flat])
"""


def test_a_plan_that_was_kept_runs_in_another_process_without_planning(tmp_path: Path) -> None:
    weight, x = layers(1)["up"][0], inputs()
    on = mesh(4, devices=slice(5, 1, -1))
    plan = autoshard(squared, on, weight, x, donate_argnums=0, option=tight(squared, on, weight, x))
    plan.save(tmp_path / "plan.json")
    np.savez(tmp_path / "arguments.npz", weight=weight, x=x)
    arguments = [str(tmp_path / name) for name in ("plan.json", "arguments.npz", "result.npz")]
    done = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "candidates" not in done.stdout
    result = np.load(tmp_path / "result.npz")
    assert_equal_up_to_rounding((result["weight"], result["loss"]), run_serially(squared, weight, x))
    assert list(result["devices"]) == [5, 4, 3, 2]


def test_a_plan_is_for_one_function_and_one_kind_of_arguments() -> None:
    fn = functools.partial(scanned_step, False)
    weights, x = layers(3), inputs()
    plan = autoshard(fn, mesh(4), weights, x, option=estimate())
    with pytest.raises(PlanError, match="another program"):
        plan.jit(lambda weights, x: (weights, jnp.mean(x @ weights["up"][0])))(weights, x)
    planned = plan.jit(fn)
    with pytest.raises(PlanError, match=r"not compiled yet"):
        planned.as_text()
    planned(weights, x)
    with pytest.raises(PlanError, match=r"args\[1\] is float32\[8,32\] here and was float32\[16,32\]"):
        planned(weights, inputs(8))
    with pytest.raises(PlanError, match=r"args\[0\]\['down'\] is bfloat16"):
        planned(jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), weights), x)
    with pytest.raises(PlanError, match=r"args\[0\]\['down'\] is missing"):
        planned({"up": weights["up"]}, x)
    with pytest.raises(PlanError, match=r"kwargs\['rate'\] was not there"):
        planned(weights, x, rate=0.1)
    with pytest.raises(PlanError, match="is a str, and no array"):
        planned(weights, "x")


def test_a_plan_runs_on_a_mesh_of_its_shape_and_axes_only() -> None:
    fn = functools.partial(scanned_step, False)
    plan = autoshard(fn, mesh(4), layers(3), inputs(), option=estimate())
    with pytest.raises(PlanError, match="for a 4-device mesh and this is an 8-device mesh"):
        plan.jit(fn, mesh(8))
    with pytest.raises(PlanError, match="call them alike"):
        plan.jit(fn, Mesh(np.array(jax.devices()[:4]), ("other",)))


def test_what_cannot_be_planned_is_refused_with_a_reason() -> None:
    x, on, option = inputs(), mesh(4), estimate()
    with pytest.raises(AutoshardError, match=r"wants a jax\.sharding\.Mesh"):
        autoshard(jnp.tanh, jax.devices(), x, option=option)
    with pytest.raises(AutoshardError, match="one to 8 axes"):
        autoshard(jnp.tanh, Mesh(np.array(jax.devices()).reshape(8, *[1] * 8), tuple("abcdefghi")), x, option=option)
    with pytest.raises(AutoshardError, match=r"args\[0\]\['name'\] is a str"):
        autoshard(lambda tree: tree["x"], on, {"name": "x", "x": x}, option=option)
    with pytest.raises(HostCallbackError):
        autoshard(lambda x: jax.pure_callback(np.sin, x, x), on, x, option=option)
    with pytest.raises(NoDevicesError):
        autoshard(lambda x: x @ x.T, AbstractMesh((4,), ("data",)), x)


def test_a_plan_made_through_alpa_has_no_shardings_by_path_and_cannot_be_run_without_it() -> None:
    plan = autoshard(jnp.tanh, mesh(4), inputs(), option=estimate())
    through_alpa = dataclasses.replace(plan, signature=None)
    assert through_alpa.in_shardings == through_alpa.out_shardings == {}
    with pytest.raises(PlanError, match="made through alpa"):
        through_alpa.jit(jnp.tanh)


def branching(params: Tree, x: jax.Array) -> tuple[Tree, jax.Array]:
    """A step with a branch over samples, which is left to XLA where they are split. No mesh divides the weight."""

    def loss(params: Tree) -> jax.Array:
        h = x @ params["w"]
        h = lax.cond(h[0, 0] > 0, lambda: h * h.mean(0), lambda: h)
        return (h**2).mean()

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients), value


def branching_arguments(samples: int) -> tuple[Tree, jax.Array]:
    return {"w": jnp.full((252, 260), 0.01)}, jnp.ones((samples, 252))


def by_samples(plan: Plan) -> Alternative:
    """The strategy of the first block that splits samples."""
    assert plan.account is not None
    return next(each for each in plan.account.kinds[0].alternatives if each.roles == ("samples",))


# With the value of the loss in the same message.
GRADIENT = Communication("all-reduce", (0,), 4 * (252 * 260 + 1), 1, "mostly gradient")


def test_an_estimate_of_what_xla_partitions_has_the_sum_of_gradients_and_so_has_what_is_explained() -> None:
    plan = autoshard(branching, mesh(8), *branching_arguments(4096), option=estimate())
    assert plan.account is not None
    own = plan.account.kinds[0].alternatives[plan.account.blocks[0].chosen]
    assert own == by_samples(plan)
    assert own.communication_source == "predicted"
    assert GRADIENT in own.communication
    said = plan.explain()
    assert "mostly gradient all-reduce 262 kB on axis data" in said
    assert "(predicted, XLA partitions this block)" in said
    assert "they are estimated as if each device computed whole what Shardy does not split" in said


def test_what_xla_partitions_is_not_taken_as_if_its_communication_were_free() -> None:
    plan = autoshard(branching, mesh(8), *branching_arguments(8), option=estimate())
    assert plan.account is not None
    own = plan.account.kinds[0].alternatives[plan.account.blocks[0].chosen]
    assert own.roles == (None,)
    assert own.time_s is not None
    assert (by_samples(plan).time_s or 0.0) > own.time_s


def test_what_xla_partitions_is_explained_by_its_compiled_program_where_it_was_measured(tmp_path: Path) -> None:
    option = CFPOption(
        database=tmp_path / "profiles.sqlite", samples=2, refine=1, pruning_margin=math.inf, progress=False
    )
    plan = autoshard(branching, mesh(8), *branching_arguments(64), option=option)
    own = by_samples(plan)
    assert own.communication_source == "compiled"
    said = words.communications(own, ("data",), most=9)
    assert "all-reduce 262 kB on axis data" in said
    assert said.endswith("(by the compiled program)")
