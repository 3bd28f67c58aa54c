"""`Plan.shardings`: the shardings of a plan work with plain JAX, and a program with them equals the serial run."""

from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from alpa_cfp import Plan, PlanOptions, autoshard
from alpa_cfp.errors import PlanError
from alpa_cfp.search import MemoryBudgetError
from integration.serial import assert_equal_up_to_rounding, run_serially

pytestmark = pytest.mark.slow


class Mlp(nn.Module):
    """Two layers."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(32)(nn.relu(nn.Dense(128)(x)))


MODEL, OPTIMISER = Mlp(), optax.adam(1e-2)


def create_state(key: jax.Array) -> TrainState:
    return TrainState.create(apply_fn=MODEL.apply, params=MODEL.init(key, jnp.ones((1, 32))), tx=OPTIMISER)


class Batch(NamedTuple):
    """A batch with a part that is not there."""

    x: Any
    y: Any
    mask: None = None


def train_step(state: TrainState, batch: Batch, key: jax.Array) -> tuple[TrainState, dict[str, Any], jax.Array]:
    next_key, noise_key = jax.random.split(key)
    x = batch.x + 0.1 * jax.random.normal(noise_key, batch.x.shape)

    def loss(params: Any) -> jax.Array:
        return jnp.mean((state.apply_fn(params, x) - batch.y) ** 2)

    value, grads = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=grads), {"loss": value, "none": None}, next_key


def shapes() -> tuple[TrainState, Batch, jax.Array]:
    state = jax.eval_shape(create_state, jax.random.key(0))
    x = jax.ShapeDtypeStruct((64, 32), jnp.float32)
    return state, Batch(x, x), jax.eval_shape(lambda: jax.random.key(1))


def arguments() -> tuple[TrainState, Batch, jax.Array]:
    x, y = jax.random.normal(jax.random.key(2), (2, 64, 32))
    return create_state(jax.random.key(0)), Batch(x, y), jax.random.key(1)


def mesh(kind: str = "Explicit", devices: slice = slice(None)) -> Mesh:
    kinds = (AxisType[kind],) * 2
    return Mesh(np.array(jax.devices()[devices][:4]).reshape(2, 2), ("data", "model"), axis_types=kinds)


def with_split_state(fn: Any, on: Mesh | AbstractMesh, *args: Any) -> Plan:
    """The plan that needs the least memory, so that the state is split."""
    with pytest.raises(MemoryBudgetError) as caught:
        autoshard(fn, on, *args, option=PlanOptions(costs="estimate", memory_budget_bytes=1))
    option = PlanOptions(costs="estimate", memory_budget_bytes=caught.value.least_bytes)
    plan = autoshard(fn, on, *args, donate_argnums=0, option=option)
    assert any(spec != PartitionSpec() for path, spec in plan.in_shardings.items() if path.startswith("args[0]"))
    return plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    return with_split_state(train_step, mesh(), *shapes())


def bits(tree: Any) -> Any:
    """The tree with NumPy arrays, keys as their bits."""

    def of_leaf(leaf: Any) -> np.ndarray:
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    return jax.tree.map(of_leaf, tree)


def assert_equals_serial(result: Any) -> None:
    assert_equal_up_to_rounding(bits(result), bits(jax.jit(train_step)(*arguments())))


def test_each_leaf_has_the_sharding_of_its_path(plan: Plan) -> None:
    of = plan.shardings(train_step, *shapes())
    for path, sharding in jax.tree_util.tree_leaves_with_path(of.args):
        assert sharding.spec == plan.in_shardings["args" + jax.tree_util.keystr(path)]
    for path, sharding in jax.tree_util.tree_leaves_with_path(of.result):
        assert sharding.spec == plan.out_shardings["result" + jax.tree_util.keystr(path)]
    assert jax.tree.structure(of.args) == jax.tree.structure(shapes())
    assert jax.tree.structure(of.result) == jax.tree.structure(jax.eval_shape(train_step, *shapes()))
    assert of.kwargs == {}


def test_plain_jit_with_them_equals_the_serial_run(plan: Plan) -> None:
    of = plan.shardings(train_step, *shapes())
    result = jax.jit(train_step, in_shardings=of.args, out_shardings=of.result, donate_argnums=0)(*arguments())
    assert_equals_serial(result)
    placed = jax.tree.map(lambda leaf, sharding: leaf.sharding == sharding, result, of.result)
    assert all(jax.tree.leaves(placed))


def test_plain_jit_with_keyword_arguments_equals_the_serial_run() -> None:
    def scaled(x: jax.Array, *, weights: dict[str, jax.Array]) -> jax.Array:
        return jnp.tanh(x @ weights["up"]) @ weights["down"]

    x, weights = jnp.ones((512, 32)), {"up": jnp.ones((32, 64)), "down": jnp.ones((64, 32))}
    option = PlanOptions(costs="estimate")
    of = autoshard(scaled, mesh(), x, weights=weights, option=option).shardings(scaled, x, weights=weights)
    placed = jax.device_put(weights, of.kwargs["weights"])
    result = jax.jit(scaled, out_shardings=of.result)(jax.device_put(x, *of.args), weights=placed)
    assert_equal_up_to_rounding(np.asarray(result), run_serially(lambda x: scaled(x, weights=weights), x))


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_with_the_mesh_of_the_program_they_have_its_axis_types(plan: Plan, kind: str) -> None:
    of = plan.shardings(train_step, *shapes(), mesh=mesh(kind))
    assert {axis.name for leaf in jax.tree.leaves(of.result) for axis in leaf.mesh.axis_types} == {kind}
    with jax.set_mesh(mesh(kind)):
        of = plan.shardings(train_step, *shapes())
    assert {axis.name for leaf in jax.tree.leaves(of.result) for axis in leaf.mesh.axis_types} == {kind}


def test_the_state_is_initialised_where_the_plan_has_it_and_then_the_plan_moves_nothing(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = plan.shardings(train_step, *shapes())
    state = jax.jit(create_state, out_shardings=of.args[0])(jax.random.key(0))
    for leaf, sharding in zip(jax.tree.leaves(state), jax.tree.leaves(of.args[0]), strict=True):
        assert leaf.sharding == sharding
    _, batch, key = arguments()
    batch, key = jax.device_put((batch, key), of.args[1:])
    planned = plan.jit(train_step)
    monkeypatch.setattr(jax, "device_put", lambda *args, **kwargs: pytest.fail("an array was moved"))
    assert_equals_serial(planned(state, batch, key))


def test_orbax_restores_a_state_where_the_plan_has_it(plan: Plan, tmp_path: Path) -> None:
    of, saved = plan.shardings(train_step, *shapes()), create_state(jax.random.key(0))
    abstract = jax.tree.map(lambda leaf, sharding: leaf.update(sharding=sharding), shapes()[0], of.args[0])
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", saved)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "state", abstract)
    assert [leaf.sharding for leaf in jax.tree.leaves(restored)] == jax.tree.leaves(of.args[0])
    assert_equals_serial(plan.jit(train_step)(restored, *arguments()[1:]))


def test_a_plan_that_was_saved_gives_them_on_other_devices(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    on = mesh("Auto", slice(4, 8))
    of = Plan.load(tmp_path / "plan.json").shardings(train_step, *shapes(), mesh=on)
    result = jax.jit(train_step, in_shardings=of.args, out_shardings=of.result)(*arguments())
    assert_equals_serial(result)
    assert result[1]["loss"].sharding.mesh == on


def test_a_state_of_nnx_has_them_too() -> None:
    graph, state = nnx.split(nnx.Sequential(nnx.Linear(32, 64, rngs=nnx.Rngs(0)), nnx.Linear(64, 32, rngs=nnx.Rngs(1))))

    def step(state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        value, grads = jax.value_and_grad(lambda state: jnp.mean((nnx.merge(graph, state)(x) - 1) ** 2))(state)
        return jax.tree.map(lambda leaf, grad: leaf - 0.1 * grad, state, grads), value

    x = jnp.ones((64, 32))
    plan = with_split_state(step, mesh(), state, x)
    of = plan.shardings(step, state, x)
    expected = run_serially(step, state, x)
    result = jax.jit(step, in_shardings=of.args, out_shardings=of.result)(*jax.device_put((state, x), of.args))
    assert_equal_up_to_rounding(bits(result), expected)


def test_what_is_not_as_planned_is_refused_by_name(plan: Plan) -> None:
    state, batch, key = shapes()
    with pytest.raises(PlanError, match=r"args\[1\]\.x is float32\[8,32\] here and was float32\[64,32\]"):
        plan.shardings(train_step, state, Batch(jnp.ones((8, 32)), jnp.ones((8, 32))), key)
    with pytest.raises(PlanError, match=r"args\[2\] is missing"):
        plan.shardings(train_step, state, batch)
    with pytest.raises(PlanError, match="another program"):
        plan.shardings(lambda state, batch, key: state, state, batch, key)
    with pytest.raises(PlanError, match="call them alike"):
        plan.shardings(train_step, state, batch, key, mesh=Mesh(mesh().devices, ("a", "b")))


def test_a_plan_for_a_mesh_without_devices_asks_for_one() -> None:
    x = jnp.ones((64, 32))
    plan = autoshard(jnp.tanh, AbstractMesh((4,), ("data",)), x, option=PlanOptions(costs="estimate"))
    with pytest.raises(PlanError, match="a mesh without devices"):
        plan.shardings(jnp.tanh, x)
    on = Mesh(np.array(jax.devices()[:4]), ("data",))
    assert isinstance(plan.shardings(jnp.tanh, x, mesh=on).result, NamedSharding)
