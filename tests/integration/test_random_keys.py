"""Typed random keys (`jax.random.key`) in what parallelized functions take and give."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa import AutoLayerOption, DataParallel, PipeshardParallel, ShardParallel, Zero3Parallel
from alpa.parallel_method import ParallelMethod

from alpa_cfp_bench.workloads.meshes import logical_mesh
from integration.planned import ESTIMATE, method
from integration.serial import assert_equal_up_to_rounding, run_serially

_RNG = np.random.default_rng(0)
WEIGHTS = {name: (_RNG.normal(size=(16, 16)) * 0.1).astype(np.float32) for name in ("first", "second")}
BATCH = _RNG.normal(size=(16, 16)).astype(np.float32)
MESH = "2x4"
METHODS: dict[str, Callable[[], ParallelMethod]] = {
    "ilp": lambda: ShardParallel(logical_mesh(MESH)),
    "data parallel": lambda: DataParallel(logical_mesh(MESH)),
    "zero-3": lambda: Zero3Parallel(logical_mesh(MESH)),
    "cfp": lambda: method(MESH, ESTIMATE),
    "micro-batches": lambda: ShardParallel(logical_mesh(MESH), num_micro_batches=2),
}
KINDS = ("threefry2x32", "rbg")


def _step(value_and_grad: Any) -> Callable[[Any, Any], Any]:
    """A step that drops some features, the same for all samples, by a key that the state keeps.

    Of the random functions alpa replaces some by others that ignore the key; `jax.random.bits` is none of these.
    """

    def step(state: Any, batch: Any) -> Any:
        def loss(weights: Any) -> Any:
            drop = jax.random.split(state["key"])[1]
            hidden = jnp.tanh(batch @ weights["first"])
            hidden = jnp.where(jax.random.bits(drop, (1, 16)) % 8 > 1, hidden, 0)
            return jnp.mean((hidden @ weights["second"] - batch) ** 2)

        value, grads = value_and_grad(loss)(state["weights"])
        weights = jax.tree.map(lambda weight, grad: weight - 0.1 * grad, state["weights"], grads)
        return {"weights": weights, "key": jax.random.split(state["key"])[0]}, value

    return step


def _state(kind: str = "threefry2x32") -> Any:
    return {"weights": jax.tree.map(jnp.asarray, WEIGHTS), "key": jax.random.key(0, impl=kind)}


def _parallel(chosen: ParallelMethod, donate_argnums: tuple[int, ...] = ()) -> Any:
    return alpa.parallelize(
        _step(alpa.value_and_grad), method=chosen, batch_argnums=(1,), donate_argnums=donate_argnums
    )


def _numbers(tree: Any) -> Any:
    """`tree` with the bits of keys in their place, as numpy arrays."""
    is_key = [jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(tree)]
    leaves = [
        np.asarray(jax.random.key_data(leaf) if key else leaf)
        for leaf, key in zip(jax.tree.leaves(tree), is_key, strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


def _assert_steps_are_the_serial_ones(parallel: Callable[[Any, Any], Any], kind: str, steps: int = 3) -> None:
    serial = jax.jit(_step(jax.value_and_grad))
    state, expected = _state(kind), _state(kind)
    for _ in range(steps):
        state, value = parallel(state, BATCH)
        expected, expected_value = serial(expected, BATCH)
        assert state["key"].dtype == expected["key"].dtype
        assert_equal_up_to_rounding(_numbers((state, value)), _numbers((expected, expected_value)))


@pytest.mark.parametrize("donated", [(), (0,)], ids=["kept", "donated"])
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_with_a_key_is_trained_as_by_the_serial_program(kind: str, name: str, donated: tuple[int, ...]) -> None:
    _assert_steps_are_the_serial_ones(_parallel(METHODS[name](), donated), kind)


@pytest.mark.usefixtures("local_pipelines")
def test_a_pipeline_takes_and_gives_keys() -> None:
    chosen = PipeshardParallel(num_micro_batches=2, layer_option=AutoLayerOption(layer_num=2), stage_option="uniform")
    _assert_steps_are_the_serial_ones(_parallel(chosen), "threefry2x32", steps=2)


def test_a_state_with_a_key_is_saved_and_restored(tmp_path: Path) -> None:
    parallel = _parallel(METHODS["ilp"]())
    state, _ = parallel(_state(), BATCH)
    alpa.save_checkpoint(tmp_path, state, 1)
    restored = alpa.restore_checkpoint(tmp_path, 1, parallel.get_last_executable().get_input_placement_specs()[0])
    assert restored["key"].dtype == state["key"].dtype
    assert_equal_up_to_rounding(_numbers(restored), _numbers(state))
    _ = parallel(restored, BATCH)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "one is split": lambda x, key: (x * 2, jax.random.split(key, 8)),
    "one is made": lambda x, key: (x * 2, jax.random.key(7)),
    "one is given back": lambda x, key: (x + 1, key),
    "each sample has one": lambda x, key: (
        x + jax.vmap(lambda k: jax.random.bits(k, (16,)) % 4)(jax.random.split(key, 16))
    ),
    "one is carried by a loop": lambda x, key: jax.lax.fori_loop(
        0, 3, lambda i, c: (c[0] + jax.random.bits(c[1], (1, 16)) % 4, jax.random.split(c[1])[0]), (x, key)
    ),
    "one is chosen": lambda x, key: (x, jax.lax.cond(x[0, 0] > 0, lambda: jax.random.split(key)[0], lambda: key)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("chosen", ["ilp", "cfp"])
def test_keys_are_those_of_the_serial_function_where(chosen: str, name: str) -> None:
    key = jax.random.key(5)
    parallel = alpa.parallelize(FUNCTIONS[name], method=METHODS[chosen](), batch_argnums=(0,), donate_argnums=())
    found = parallel(BATCH, key)
    expected = jax.jit(FUNCTIONS[name])(BATCH, key)
    assert jax.tree.map(lambda leaf: leaf.dtype, found) == jax.tree.map(lambda leaf: leaf.dtype, expected)
    assert_equal_up_to_rounding(_numbers(found), _numbers(expected))


def test_a_key_that_the_function_closes_over_is_a_constant_of_it() -> None:
    key = jax.random.key(5)

    def function(x: Any) -> Any:
        return x + jax.random.bits(key, (1, 16)) % 4

    parallel = alpa.parallelize(function, method=METHODS["ilp"](), batch_argnums=(0,), donate_argnums=())
    assert_equal_up_to_rounding(parallel(BATCH), run_serially(function, BATCH))


def test_a_state_is_made_where_the_step_wants_it() -> None:
    step = _parallel(METHODS["ilp"]())
    create = alpa.parallelize(
        lambda: _state(), method=alpa.CreateStateParallel(step, BATCH), donate_argnums=(), batch_argnums=()
    )
    state = create()
    assert_equal_up_to_rounding(_numbers(state), _numbers(_state()))
    _ = step(state, BATCH)


def test_functions_without_keys_compile_once() -> None:
    parallel = alpa.parallelize(lambda x: x + 1, method=METHODS["ilp"](), batch_argnums=(0,), donate_argnums=())
    parallel(BATCH)
    first = parallel.get_last_executable()
    parallel(BATCH)
    assert parallel.get_last_executable() is first
