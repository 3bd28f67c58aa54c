"""Is a step right? Takes what it gave and what one device gave; says by how much they differ, and where.

The whole state after the first step is compared: parameters, and the optimizer's momentum, which is then the gradient
itself. Invariant: what is not finite, or has another shape or dtype, differs by infinitely much.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from alpa_cfp_bench.workloads.model import Model, micro_batched_step

# Sums in another order differ by some times float32's 6e-8; a wrong reduction is off by 1e-1 or more.
CPU_TOLERANCE = 1e-4
# GPUs may multiply float32 with 10 bits of mantissa (TF32).
OTHER_TOLERANCE = 2e-2
# What is zero by symmetry (the gradient of a bias before a norm) has no size of its own: an array is measured as if its
# largest entry were at least this part of the largest entry of the whole state.
_FLOOR = 1e-2


@dataclass(frozen=True, slots=True)
class Difference:
    """How far something is from what it should be.

    Attributes:
        relative: The largest difference of an entry, relative to the largest entry of its array.
        where: The array in which it is.
    """

    relative: float
    where: str


@dataclass(frozen=True, slots=True)
class Expected:
    """The reference results of a step.

    Attributes:
        loss: The loss.
        state: The state after the step, as numpy arrays.
    """

    loss: float
    state: Any


def tolerance(model: Model, platform: str | None = None) -> float:
    """By how much a model's step on devices of a platform may differ; None for those of this process."""
    on_platform = CPU_TOLERANCE if (platform or jax.default_backend()) == "cpu" else OTHER_TOLERANCE
    return max(on_platform, model.rounding)


def run_serially(model: Model, num_micro_batches: int | None) -> Expected:
    """One step of a model on one device by plain `jax.jit`: no alpa function takes part."""
    arguments = jax.device_put((model.state, model.batch), jax.local_devices()[0])
    state, metrics, _ = jax.jit(micro_batched_step(model, num_micro_batches))(*arguments)
    return Expected(float(metrics["loss"]), jax.tree.map(np.asarray, state))


def difference(loss: float, state: Any, expected: Expected) -> Difference:
    """The largest difference between what a step gave and what it should give."""
    wanted = [("loss", np.float32(expected.loss)), *_leaves(expected.state)]
    got = dict([("loss", np.float32(loss)), *_leaves(state)])
    largest = max(float(np.max(np.abs(leaf), initial=0.0)) for _, leaf in wanted if _floats(leaf))
    worst = Difference(0.0, "")
    for path, leaf in wanted:
        relative = _of_leaf(got[path], leaf, largest) if path in got else math.inf
        if relative > worst.relative:
            worst = Difference(relative, path)
    return worst


def _of_leaf(got: Any, wanted: Any, largest: float) -> float:
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return math.inf
    if not _floats(wanted):
        return 0.0 if np.array_equal(got, wanted) else math.inf
    if not np.all(np.isfinite(got)):
        return math.inf
    size = max(float(np.max(np.abs(wanted), initial=0.0)), _FLOOR * largest)
    off = float(np.max(np.abs(got - wanted), initial=0.0))
    return off / size if off else 0.0


def _floats(leaf: Any) -> bool:
    return np.issubdtype(leaf.dtype, np.floating)


def _leaves(state: Any) -> list[tuple[str, np.ndarray]]:
    return [
        (jax.tree_util.keystr(path, simple=True, separator="/"), np.asarray(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    ]
