"""How far the arrays of two runs of one step differ, leaf by leaf, and whether by more than rounding does.

Takes results as pytrees; gives deviations by path. A deviation is relative to the largest element of its array in the
reference. Adam divides by the root of a mean square: where a gradient is zero but for rounding, its step has the
size of the learning rate and the sign of the rounding. So a deviation is judged beside those of the *controls*: runs of
`jax.jit` of the same program with the arguments changed in the last bit, or by data parallelism. Invariant: what no
control moves has to agree within `TOLERANCE`, and whole numbers, truth values and keys among it exactly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

TOLERANCE = 1e-4
_TIMES_CONTROL = 10.0


@dataclass(frozen=True)
class Comparison:
    """A run beside the reference.

    Attributes:
        largest: The largest deviation, and its path.
        control: The largest deviation of the controls there.
        beyond: The path of an array that deviates by more than rounding explains; "" where there is none.
    """

    largest: float
    path: str
    control: float
    beyond: str


def compared(own: Any, reference: Any, controls: Sequence[Any]) -> Comparison:
    """Compare the arrays of `own` with those of `reference`."""
    deviations = deviation_of(own, reference)
    allowed = dict.fromkeys(deviations, 0.0)
    for control in controls:
        for path, deviation in deviation_of(control, reference).items():
            allowed[path] = max(allowed.get(path, 0.0), deviation)
    path = max(deviations, key=lambda path: deviations[path], default="")
    over = {
        path: deviation - max(TOLERANCE, _TIMES_CONTROL * allowed[path])
        for path, deviation in deviations.items()
        if not deviation <= max(TOLERANCE, _TIMES_CONTROL * allowed[path])
    }
    beyond = max(over, key=lambda path: over[path], default="")
    return Comparison(deviations.get(path, 0.0), path, allowed.get(path, 0.0), beyond)


def deviation_of(own: Any, reference: Any) -> Mapping[str, float]:
    """The deviation of each array by its path; inf where one alone is not finite, or a shape or structure differs."""
    # Not the structures themselves: those of two runs of a program hold two optimizers, which are not equal.
    mine, other = (
        {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(result)}
        for result in (own, reference)
    )
    if mine.keys() != other.keys():
        return {"structure": float("inf")}
    return {path: _deviation(mine[path], other[path]) for path in mine}


def _deviation(own: Any, reference: Any) -> float:
    a, b = as_numbers(own), as_numbers(reference)
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if not np.issubdtype(a.dtype, np.inexact) and a.dtype != jnp.bfloat16:
        return float(np.max(a != b, initial=False))
    a, b = a.astype(np.float64), b.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    finite = np.isfinite(b)
    a, b = a[finite], b[finite]
    size = np.max(np.abs(b), initial=0.0)
    return float(np.max(np.abs(a - b), initial=0.0) / (size or 1.0))


def as_numbers(array: Any) -> np.ndarray:
    """The elements on the host; of random keys their bits."""
    if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(array)


def in_the_last_bit(arguments: Any, seed: int) -> Any:
    """The same arguments, of which each float is multiplied by a number within two units in the last place of 1."""
    draw = np.random.default_rng(seed)

    def changed(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array | np.ndarray) or not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        wide = np.asarray(leaf).astype(np.float64)
        factor = 1 + float(jnp.finfo(leaf.dtype).eps) * draw.integers(-2, 3, wide.shape)
        return jnp.asarray((wide * factor).astype(leaf.dtype))

    return jax.tree.map(changed, arguments)
