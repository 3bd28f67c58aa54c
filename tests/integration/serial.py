"""The serial run that parallel programs are held against, and the comparison with it.

Takes a model and a number of micro-batches, gives back the values after each step as numpy arrays, computed
by plain `jax.jit` on one device: no alpa function takes part. Micro-batches are what alpa documents them to be:
consecutive parts of the batch whose gradients and auxiliary values are averaged, and one update.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np

from alpa_cfp_bench.workloads.model import Model, micro_batched_step
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.sizes import TINY, Size

# float32 rounds at 6e-8. A sum of n terms in another order differs by about sqrt(n) of that relative to the size of the
# terms, which may cancel: so errors are measured against the largest entry of the array. Plain `jax.jit` with the same
# shardings differs from the serial run by at most 3e-6 on these models; a wrong reduction is off by 1e-1 or more.
RELATIVE_TOLERANCE = 1e-5
# What is zero by symmetry (the gradient of a bias before a batch norm, say) has no size of its own: it is measured
# against the largest array of the tree, at float32's own precision.
ZERO_TOLERANCE = 1e-7
# Of what nearly cancels (gradients before the batch norms of a ResNet) the serial run itself differs by more, on some
# CPUs, when its samples come in another order: twice that is allowed then, and never more than so many times the above.
_REORDERED, _MOST = 2.0, 3.0
_ORDERS = 4


@dataclass(frozen=True)
class StepValues:
    """What a step gives back: numpy arrays in the pytrees of the training step."""

    state: Any
    metrics: dict[str, np.ndarray]
    grads: Any


def run_serially(function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)` as one device computes it under `jax.jit`, with numpy arrays as leaves."""
    device = jax.local_devices()[0]
    return jax.tree.map(np.asarray, jax.jit(function)(*jax.device_put(args, device)))


def serial_steps(model: Model, num_micro_batches: int | None, num_steps: int) -> list[StepValues]:
    """What `num_steps` training steps of `model` give on one device, all on the same batch."""
    return _steps(jax.jit(micro_batched_step(model, num_micro_batches)), model.state, model.batch, num_steps)


def _steps(jitted: Callable[..., Any], state: Any, batch: Any, num_steps: int) -> list[StepValues]:
    values = []
    for _ in range(num_steps):
        state, metrics, grads = jitted(state, batch)
        values.append(StepValues(*jax.tree.map(np.asarray, (state, metrics, grads))))
    return values


@cache
def _two_steps(model: str, num_micro_batches: int | None, size: Size) -> list[StepValues]:
    return serial_steps(build(model, size), num_micro_batches, 2)


def expected_steps(model: str, num_micro_batches: int | None, num_steps: int, size: Size = TINY) -> list[StepValues]:
    """`serial_steps` of the model called `model`, computed once a process; 1 or 2 steps."""
    steps = _two_steps(model, num_micro_batches, size)
    if not 1 <= num_steps <= len(steps):
        raise ValueError(f"{num_steps} steps are asked for, and {len(steps)} are kept: see serial_steps")
    return steps[:num_steps]


@cache
def reordered_steps(model: str, num_micro_batches: int) -> list[list[StepValues]]:
    """As `expected_steps`, several times, with the samples of each micro-batch in other orders.

    For sums and means over samples that is the same.
    """
    built = build(model)
    size = len(jax.tree.leaves(built.batch)[0]) // num_micro_batches
    drawn, jitted, runs = np.random.default_rng(0), jax.jit(micro_batched_step(built, num_micro_batches)), []
    for _ in range(_ORDERS):
        order = np.concatenate([start * size + drawn.permutation(size) for start in range(num_micro_batches)])
        batch = jax.tree.map(lambda array, order=order: array[order], built.batch)
        runs.append(_steps(jitted, built.state, batch, 2))
    return runs


def assert_equal_up_to_rounding(actual: Any, expected: Any, reordered: Sequence[Any] = ()) -> None:
    """Hold a pytree of arrays against the serial one, leaf by leaf; the message names the leaf.

    Args:
        actual: What the parallel program gave.
        expected: What the serial run gave.
        reordered: What it gave with its samples in other orders, where that is known.

    Raises:
        AssertionError: another structure, shape or dtype, a value that is not finite, or a difference of more than
            RELATIVE_TOLERANCE of the leaf's largest entry and ZERO_TOLERANCE of the tree's.
    """
    expected_leaves, expected_tree = jax.tree_util.tree_flatten_with_path(expected)
    actual_leaves, actual_tree = jax.tree.flatten(actual)
    assert actual_tree == expected_tree
    largest = max((float(np.max(np.abs(leaf))) for _, leaf in expected_leaves if leaf.size), default=0.0)
    others = zip(*map(jax.tree.leaves, reordered), strict=True) if reordered else [()] * len(actual_leaves)
    for (path, wanted), got, other in zip(expected_leaves, actual_leaves, others, strict=True):
        name = jax.tree_util.keystr(path)
        assert got.shape == wanted.shape, f"{name}: shape {got.shape}, expected {wanted.shape}"
        assert got.dtype == wanted.dtype, f"{name}: dtype {got.dtype}, expected {wanted.dtype}"
        assert np.all(np.isfinite(got)), f"{name} is not finite"
        if not np.issubdtype(wanted.dtype, np.floating):
            np.testing.assert_array_equal(got, wanted, err_msg=name)
            continue
        difference = float(np.max(np.abs(got - wanted), initial=0.0))
        size = float(np.max(np.abs(wanted), initial=0.0))
        limit = RELATIVE_TOLERANCE * size + ZERO_TOLERANCE * largest
        rounding = max((float(np.max(np.abs(each - wanted), initial=0.0)) for each in other), default=0.0)
        limit = max(limit, min(_REORDERED * rounding, _MOST * limit))
        assert difference <= limit, (
            f"{name}: differs by {difference:.3g}, more than {limit:.3g} (largest entry {size:.3g})"
        )
