"""`Plan.jit` composes with JAX: lowered, exported, kept ahead of time and called inside `jax.jit`, the program equals
the serial run, whichever collectives it has and whoever partitions it.
"""

import dataclasses
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.serialize_executable import serialize
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from alpa_cfp import Plan, PlanOptions, autoshard
from alpa_cfp.analysis.blocks import find_blocks
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.errors import PlanError
from alpa_cfp.jit import compiled_program
from alpa_cfp.jit.planned_function import PlannedFunction
from alpa_cfp.jit.tracing import trace
from alpa_cfp.search import MemoryBudgetError
from alpa_cfp.spmd.module.partitioned import Collective
from alpa_cfp.spmd.partition.xla import leave_to_xla
from alpa_cfp.strategies.block_strategy import strategies_of
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from integration.serial import assert_equal_up_to_rounding, expected_steps

pytestmark = pytest.mark.slow

SHAPE = (2, 4)
KINDS = ("Auto", "Explicit")


def mesh(kind: str, shape: tuple[int, ...] = SHAPE) -> Mesh:
    names = ("data", "model")[: len(shape)]
    return Mesh(np.array(jax.devices()).reshape(shape), names, axis_types=(AxisType[kind],) * len(shape))


def step(state: Any, x: jax.Array, *, rate: float) -> Any:
    """A step with random keys, numbers, and a result that is no array."""
    weights, key, count = state

    def loss(weights: dict[str, jax.Array]) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ weights["up"]) @ weights["down"] - 1) ** 2)

    value, grads = jax.value_and_grad(loss)(weights)
    key, noise_key = jax.random.split(key)
    noise = 0.01 * jax.random.normal(noise_key, weights["up"].shape)
    weights = jax.tree.map(lambda weight, grad: weight - rate * grad, weights, grads)
    return ({**weights, "up": weights["up"] + noise}, key, count + 1), value, None, 2 * rate


def arguments() -> tuple[Any, jax.Array]:
    up, down = jax.random.normal(jax.random.key(0), (2, 32, 64)) / 8
    x = jax.random.normal(jax.random.key(1), (64, 32))
    return ({"up": up, "down": down.T}, jax.random.key(2), 0), x


RATE = 0.1


def bits(tree: Any) -> Any:
    """The tree with NumPy arrays, keys as their bits."""

    def of_leaf(leaf: Any) -> np.ndarray:
        is_key = isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    return jax.tree.map(of_leaf, tree)


def assert_equals_serial(result: Any) -> None:
    assert_equal_up_to_rounding(bits(result), bits(jax.jit(step)(*arguments(), rate=RATE)))


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A plan that splits the state over both axes."""
    args, on = arguments(), mesh("Auto")
    with pytest.raises(MemoryBudgetError) as caught:
        autoshard(step, on, *args, rate=RATE, option=PlanOptions(costs="estimate", memory_budget_bytes=1))
    option = PlanOptions(costs="estimate", memory_budget_bytes=caught.value.least_bytes)
    return autoshard(step, on, *args, rate=RATE, donate_argnums=0, option=option)


@pytest.fixture(params=["shardy", "xla"])
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who partitions the program: what Shardy's passes do not cover is left to XLA."""
    if request.param == "xla":
        monkeypatch.setattr(compiled_program, "partition_to_run", lambda module: leave_to_xla(module, "a test"))
    return request.param


@pytest.mark.parametrize("kind", KINDS)
def test_as_a_function_of_jax_jit_it_equals_the_serial_run_and_donates(plan: Plan, kind: str, partitioner: str) -> None:
    planned = plan.jit(step, mesh(kind))
    assert planned.compile(*arguments(), rate=RATE)._require_program().partitioned.partitioner == partitioner
    jitted = planned.as_jax_jit()
    assert_equals_serial(jitted(*arguments(), rate=RATE))
    args, _ = planned.input_shardings
    state = jax.device_put(arguments()[0], args[0])
    result = jitted(state, arguments()[1], rate=RATE)
    assert state[0]["up"].is_deleted()
    assert_equals_serial(result)
    for leaf, sharding in zip(jax.tree.leaves(result), jax.tree.leaves(planned.output_shardings), strict=True):
        assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
    types = [getattr(leaf, "weak_type", None) for leaf in jax.tree.leaves(result)]
    assert types == [getattr(leaf, "weak_type", None) for leaf in jax.tree.leaves(planned(*arguments(), rate=RATE))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("around", [None, *KINDS])
def test_called_inside_jit_it_is_an_inner_call(plan: Plan, kind: str, around: str | None, partitioner: str) -> None:
    """Also under `jax.set_mesh`, and with arguments that have other axis types."""
    planned = plan.jit(step, mesh(kind)).compile(*arguments(), rate=RATE)
    assert planned._require_program().partitioned.partitioner == partitioner

    @jax.jit
    def outer(state: Any, x: jax.Array) -> Any:
        return planned(state, (2 * x) / 2, rate=RATE)

    state, x = arguments()
    if around is not None:
        with jax.set_mesh(mesh(around)):
            assert_equals_serial(outer(state, x))
        x = jax.device_put(x, NamedSharding(mesh(around), PartitionSpec("model")))
    assert_equals_serial(outer(state, x))


def test_called_inside_a_scan_it_equals_the_serial_steps(plan: Plan) -> None:
    planned, (state, x) = plan.jit(step), arguments()
    (weights, key, count), batches = state, jnp.stack([x, 2 * x])
    _, losses = lax.scan(lambda state, x: planned(state, x, rate=RATE)[:2], (weights, key, jnp.asarray(count)), batches)
    expected = []
    for batch in batches:
        state, loss, *_ = step(state, batch, rate=RATE)
        expected.append(loss)
    assert_equal_up_to_rounding(np.asarray(losses), np.array(expected))


def test_it_is_lowered_and_compiled_ahead_of_time_from_shapes(plan: Plan) -> None:
    planned = plan.jit(step)
    shapes = jax.eval_shape(lambda: arguments())
    lowered = planned.lower(*shapes, rate=RATE)
    assert "all_reduce" in lowered.as_text()
    compiled = lowered.compile()
    args, kwargs = planned.input_shardings
    same = jax.tree.map(lambda own, given: own.is_equivalent_to(given, 2), compiled.input_shardings, (args, kwargs))
    assert all(jax.tree.leaves(same))
    flops = compiled.cost_analysis()["flops"]
    planned.compile(*shapes, rate=RATE)
    assert planned.cost_analysis()["flops"] == pytest.approx(flops, rel=0.01)
    assert planned.memory_analysis().argument_size_in_bytes == planned.memory_bytes()["arguments"]
    assert compiled.memory_analysis().argument_size_in_bytes == planned.memory_bytes()["arguments"]
    assert compiled.memory_analysis().alias_size_in_bytes == planned.memory_bytes()["aliased"] > 0
    state, x = arguments()
    assert_equals_serial(compiled(jax.device_put(state, args[0]), jax.device_put(x, args[1]), rate=RATE))


def test_it_has_the_collectives_of_the_planned_program(plan: Plan) -> None:
    planned = plan.jit(step).compile(*arguments(), rate=RATE)
    compiled = planned.lower(*arguments(), rate=RATE).compile()
    for kind in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"):
        count = planned.as_text().count(f" {kind}(")
        assert compiled.as_text().count(f" {kind}(") == count


def test_it_is_exported(plan: Plan, partitioner: str) -> None:
    planned = plan.jit(step, mesh("Explicit"))
    exported = jax.export.export(planned)(*arguments(), rate=RATE)
    assert exported.nr_devices == 8
    args, kwargs = planned.input_shardings
    (state, x), rate = arguments(), jax.device_put(RATE, kwargs["rate"])
    assert_equals_serial(jax.jit(exported.call)(*jax.device_put((state, x), args), rate=rate))


OTHER_PROCESS = """
import pickle, sys
import jax
from jax.experimental.serialize_executable import deserialize_and_load

compiled = deserialize_and_load(*pickle.load(open(sys.argv[1], "rb")))
print(float(compiled(*(jax.numpy.full(shape, 0.5) for shape in [(32, 64), (128, 32)]))))
"""


def mean_of_product(weight: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.mean(jnp.tanh(x @ weight) @ weight.T)


def test_compiled_ahead_of_time_it_runs_in_another_process_without_this_package(tmp_path: Path) -> None:
    args = jnp.full((32, 64), 0.5), jnp.full((128, 32), 0.5)
    plan = autoshard(mean_of_product, mesh("Auto"), *args, option=PlanOptions(costs="estimate"))
    (tmp_path / "step.pickle").write_bytes(pickle.dumps(serialize(plan.jit(mean_of_product).lower(*args).compile())))
    run = [sys.executable, "-c", OTHER_PROCESS, str(tmp_path / "step.pickle")]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_equal_up_to_rounding(np.float32(done.stdout), np.asarray(mean_of_product(*args)))


def drawn_plan(fn: Any, on: Mesh, args: tuple[Any, ...], seed: int) -> Plan:
    """A plan with a strategy for each block that is drawn at random."""
    plan = autoshard(fn, on, *args, option=PlanOptions(costs="estimate"))
    blocks = find_blocks(read_graph(trace(fn, args, {}, (), "cpu").module.bytecode)).blocks
    drawn = random.Random(seed)
    strategies = tuple(drawn.choice(strategies_of(block, plan.mesh_shape)) for block in blocks)
    option = PlanOptions(costs="estimate", plan=dataclasses.replace(plan, strategies=strategies))
    return autoshard(fn, on, *args, option=option)


def collectives_of(planned: PlannedFunction) -> tuple[Collective, ...]:
    return planned._require_program().partitioned.collectives


def test_with_any_strategies_and_collectives_it_equals_the_serial_run() -> None:
    kinds: set[str] = set()
    for model, shape, seed in [("gpt", (2, 4), 0), ("gpt", (2, 4), 1), ("moe", (2, 4), 0), ("gpt", (8,), 2)]:
        built = build(model)
        fn, args = train_step(built, jax.value_and_grad), (built.state, built.batch)
        planned = drawn_plan(fn, mesh("Auto", shape), args, seed).jit(fn)
        state, metrics, grads = planned.as_jax_jit()(*args)
        kinds |= {collective.kind for collective in collectives_of(planned)}
        expected = expected_steps(model, None, 1)[0]
        assert_equal_up_to_rounding(bits((state, metrics, grads)), (expected.state, expected.metrics, expected.grads))
    assert kinds == {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"}


def test_what_transforms_it_is_refused_by_name(plan: Plan) -> None:
    planned, ((weights, key, count), x) = plan.jit(step), arguments()

    def loss(weights: Any, x: jax.Array) -> Any:
        return planned((weights, key, count), x, rate=RATE)[1]

    with pytest.raises(PlanError, match=r"jax\.grad cannot go through a planned function"):
        jax.grad(loss)(weights, x)
    with pytest.raises(PlanError, match=r"jax\.grad cannot go through a planned function"):
        jax.jit(jax.grad(loss))(weights, x)
    with pytest.raises(PlanError, match=r"jax\.vmap cannot go through a planned function"):
        jax.vmap(loss, (None, 0))(weights, x[None])
    with pytest.raises(PlanError, match=r"jax\.shard_map cannot go through a planned function"):
        jax.shard_map(loss, mesh=mesh("Auto"), in_specs=PartitionSpec(), out_specs=PartitionSpec())(weights, x)
    with pytest.raises(PlanError, match=r"args\[1\] is float32\[1,64,32\] here"):
        jax.jit(loss)(weights, x[None])


def test_a_program_with_a_random_state_of_its_own_runs_but_is_no_part_of_another() -> None:
    def noisy(x: jax.Array) -> jax.Array:
        return x @ x.T + lax.rng_uniform(jnp.float32(0), jnp.float32(1), (64, 64))

    x = jnp.ones((64, 32))
    planned = autoshard(noisy, mesh("Auto"), x, option=PlanOptions(costs="estimate")).jit(noisy)
    assert planned(x).shape == (64, 64)
    with pytest.raises(PlanError, match=r"draws random numbers by jax\.lax\.rng_uniform"):
        planned.lower(x)
