"""What XLA's own partitioner gets wrong where dims are split is right when a program is left to it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from alpa_cfp.spmd.partition.xla import leave_to_xla
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from unit.alpa_cfp.spmd.helpers import annotate, load, lower, place, split, values_of

pytestmark = pytest.mark.slow

_RNG = np.random.default_rng(0)


def _whole_numbers(*shape: int) -> np.ndarray:
    return _RNG.integers(-2, 3, shape).astype(np.float32)


def _depthwise_gradient(x: Any, kernel: Any, cotangent: Any) -> Any:
    def convolution(kernel: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=kernel.shape[-1]
        )

    return jax.vjp(convolution, kernel)[1](cotangent)[0]


def _sliced(x: Any) -> Any:
    return jnp.roll(x, 1, 0) + x[::-1]


CASES: dict[str, tuple[Callable[..., Any], list[np.ndarray], list[tuple[str, ...]]]] = {
    "a gradient of a depthwise kernel": (
        _depthwise_gradient,
        [_whole_numbers(4, 4, 4, 8), _whole_numbers(3, 3, 1, 8), _whole_numbers(4, 4, 4, 8)],
        [("x", "", "", ""), ("", "", "", "y"), ("x", "", "", "y")],
    ),
    "a product over three dims": (
        lambda x, y: jnp.einsum("abc,abc->", x, y),
        [_whole_numbers(8, 8, 4), _whole_numbers(8, 8, 4)],
        [("", "y", "x"), ("x", "y", "")],
    ),
    "a product over dims that are split on one side alone": (
        lambda x, y: jnp.einsum("abc,abd->cd", x, y),
        [_whole_numbers(8, 8, 4), _whole_numbers(8, 8, 4)],
        [("x", "", ""), ("", "x", "y")],
    ),
    "parts that do not divide a slice": (_sliced, [_whole_numbers(16, 8)], [("x", "y")]),
    "a pad that cuts off and spreads out": (
        lambda x: lax.pad(x, np.float32(0), [(1, 2, 1), (4, -1, 1)]),
        [_whole_numbers(12, 8)],
        [("x", "y")],
    ),
}


@pytest.mark.parametrize("mesh", [LogicalMesh((2, 2)), LogicalMesh((2, 4))], ids=["2x2", "2x4"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_left_to_xla_is_right(name: str, mesh: LogicalMesh) -> None:
    function, arguments, dims = CASES[name]
    inputs = [split(mesh, *names) for names in dims]
    module = annotate(lower(function, arguments), mesh, inputs)
    executable = load(module, leave_to_xla(module, "it is to"))
    (found,) = executable.execute_sharded_on_local_devices(place(executable, arguments))
    np.testing.assert_array_equal(np.asarray(found), values_of(function, arguments)[0])
