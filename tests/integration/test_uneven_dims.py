"""Training steps with dims that no mesh divides: primes, odd vocabularies, kernels of size 1, small matrices.

What a method makes of them must be right, and what comes out must be readable, be taken again by the next step, and be
saved and restored. Alpa's own strategies split such dims where XLA pads them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa import AutoShardingOption, DataParallel, ShardParallel, Zero2Parallel, Zero3Parallel
from alpa.parallel_method import ParallelMethod
from jax import lax

from alpa_cfp_bench.workloads.meshes import logical_mesh
from integration.planned import ESTIMATE, method
from integration.serial import assert_equal_up_to_rounding

_RNG = np.random.default_rng(0)
_STEPS = 3


def _weights(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {name: (_RNG.normal(size=shape) * 0.3).astype(np.float32) for name, shape in shapes.items()}


def _conv(x: Any, kernel: Any, groups: int = 1) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=groups)


def _separable(weights: Any, x: Any, prefix: str) -> Any:
    """A depthwise convolution between two of 1x1, as in a MobileNet or a ConvNeXt."""
    features = weights[f"{prefix}_depth"].shape[-1]
    y = _conv(jax.nn.gelu(_conv(x, weights[f"{prefix}_in"])), weights[f"{prefix}_depth"], features)
    return _conv(jax.nn.gelu(y * weights[f"{prefix}_scale"]), weights[f"{prefix}_out"])


def _u_net(weights: Any, x: Any) -> Any:
    down = _separable(weights, x, "a")
    up = jnp.repeat(jnp.repeat(_separable(weights, down[:, ::2, ::2], "b"), 2, 1), 2, 2)
    y = _conv(jnp.concatenate([up, down, x], -1), weights["head"])
    return jnp.mean((y - x[..., :1]) ** 2)


def _dense(weights: Any, x: Any) -> Any:
    y = jnp.tanh(x @ weights["w1"] + weights["b1"]) @ weights["w2"]
    return jnp.mean((y - x) ** 2) * (1 + weights["scale"][0])


def _language(weights: Any, tokens: Any) -> Any:
    logits = jax.nn.log_softmax(weights["table"][tokens] @ weights["head"])
    return -jnp.mean(jnp.take_along_axis(logits, tokens[..., None], -1))


def _linear_algebra(weights: Any, x: Any) -> Any:
    matrix = weights["a"] @ weights["a"].T + jnp.eye(7) + x.T @ x
    return jnp.mean(jnp.linalg.solve(matrix, weights["b"]) ** 2) + jnp.sum(jnp.linalg.cholesky(matrix)) / 10


def _separable_shapes(prefix: str, before: int, after: int) -> dict[str, tuple[int, ...]]:
    kernels = {"in": (1, 1, before, after), "depth": (3, 3, 1, after), "out": (1, 1, after, after), "scale": (after,)}
    return {f"{prefix}_{name}": shape for name, shape in kernels.items()}


@dataclass(frozen=True)
class _Program:
    loss: Callable[[Any, Any], Any]
    weights: dict[str, np.ndarray]
    batch: np.ndarray


PROGRAMS = {
    "a U-Net with depthwise convolutions": _Program(
        _u_net,
        _weights(**_separable_shapes("a", 3, 16), **_separable_shapes("b", 16, 16), head=(1, 1, 35, 1)),
        _RNG.normal(size=(8, 8, 8, 3)).astype(np.float32),
    ),
    "layers of 50 x 37": _Program(
        _dense,
        _weights(w1=(50, 37), b1=(37,), w2=(37, 50), scale=(1,)),
        _RNG.normal(size=(16, 50)).astype(np.float32),
    ),
    "a vocabulary of 257": _Program(
        _language, _weights(table=(257, 24), head=(24, 257)), _RNG.integers(0, 257, size=(16, 9))
    ),
    "matrices of 7 x 7": _Program(
        _linear_algebra, _weights(a=(7, 7), b=(7, 5)), _RNG.normal(size=(16, 7)).astype(np.float32)
    ),
}
METHODS: dict[str, Callable[[str], ParallelMethod]] = {
    "ilp": lambda mesh: ShardParallel(logical_mesh(mesh)),
    "ilp with mixed shapes": lambda mesh: ShardParallel(
        logical_mesh(mesh), auto_sharding_option=AutoShardingOption(allow_mixed_mesh_shape=True)
    ),
    "data parallel": lambda mesh: DataParallel(logical_mesh(mesh)),
    "zero-2": lambda mesh: Zero2Parallel(logical_mesh(mesh)),
    "zero-3": lambda mesh: Zero3Parallel(logical_mesh(mesh)),
    "cfp": lambda mesh: method(mesh, ESTIMATE),
}


def _step(loss: Callable[[Any, Any], Any], value_and_grad: Any) -> Callable[[Any, Any], Any]:
    """A step of gradient descent with momentum; its state is (weights, momenta)."""

    def step(state: Any, batch: Any) -> Any:
        weights, momenta = state
        value, grads = value_and_grad(loss)(weights, batch)
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, grads)
        return (jax.tree.map(lambda w, m: w - 0.1 * m, weights, momenta), momenta), (value, grads)

    return step


def _state(program: _Program) -> Any:
    return jax.tree.map(jnp.asarray, (program.weights, jax.tree.map(np.zeros_like, program.weights)))


def _parallel(program: _Program, method_name: str, mesh: str) -> Any:
    step = _step(program.loss, alpa.value_and_grad)
    return alpa.parallelize(step, method=METHODS[method_name](mesh), batch_argnums=(1,), donate_argnums=())


@pytest.mark.parametrize("method_name", METHODS)
@pytest.mark.parametrize("mesh", ["1x8", "2x4", "4x2"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_that_feed_on_each_other_equal_the_serial_ones(name: str, mesh: str, method_name: str) -> None:
    program = PROGRAMS[name]
    parallel, serial = _parallel(program, method_name, mesh), jax.jit(_step(program.loss, jax.value_and_grad))
    state, expected = _state(program), _state(program)
    for _ in range(_STEPS):
        state, output = parallel(state, program.batch)
        expected, expected_output = serial(expected, program.batch)
        assert_equal_up_to_rounding((state, output), jax.tree.map(np.asarray, (expected, expected_output)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_state_is_saved_restored_and_trained_on(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    parallel = _parallel(program, "ilp", "2x4")
    state, _ = parallel(_state(program), program.batch)
    alpa.save_checkpoint(tmp_path, state, 1)
    placements = parallel.get_last_executable().get_input_placement_specs()[0]
    restored = alpa.restore_checkpoint(tmp_path, 1, placements)
    after, _ = parallel(restored, program.batch)
    expected, _ = parallel(state, program.batch)
    assert_equal_up_to_rounding(after, jax.tree.map(np.asarray, expected))
