"""Complex constants become pairs of real ones with the same numbers."""

from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.lowered_form import split_complex_constants

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)
NUMBERS = st.builds(complex, FINITE, FINITE)


def constants(values: np.ndarray) -> list[np.ndarray]:
    """The real constants, in program order, that a function gets which returns the complex constant `values`."""
    with jax.enable_x64(values.dtype == np.complex128):
        text = str(jax.jit(lambda: jnp.asarray(values)).lower().compiler_ir("stablehlo"))
    with mlir.context():
        module = mlir.parse(text)
        split_complex_constants(module)
        assert module.operation.verify()
        ops = mlir.block_operations(mlir.entry_block(mlir.main_function(module)))
        return [
            np.array(ir.DenseElementsAttr(op.attributes["value"])).reshape(values.shape)
            for op in ops
            if op.name == "stablehlo.constant"
        ]


@given(hnp.arrays(np.complex64, hnp.array_shapes(min_dims=0, max_dims=3, max_side=4), elements=NUMBERS))
def test_the_parts_are_the_numbers_bit_for_bit(values: np.ndarray) -> None:
    real, imaginary = constants(values)
    np.testing.assert_array_equal(real, np.real(values))
    np.testing.assert_array_equal(imaginary, np.imag(values))


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_large_constants_too_which_are_written_as_bytes(dtype: Any) -> None:
    values = (np.arange(4096) + 1j * np.arange(4096)[::-1]).astype(dtype).reshape(64, 64)
    real, imaginary = constants(values)
    np.testing.assert_array_equal(real, np.real(values))
    np.testing.assert_array_equal(imaginary, np.imag(values))


def test_the_gradient_of_a_fourier_transform_is_planned_by_alpa() -> None:
    def loss(weight: Any, batch: Any) -> Any:
        return jnp.mean(jnp.abs(jnp.fft.fft(batch @ weight, axis=1)) ** 2)

    weight, batch = jnp.arange(128.0).reshape(8, 16) / 100, jnp.ones((16, 8))
    step: Any = alpa.parallelize(alpa.grad(loss), method=alpa.ShardParallel(), donate_argnums=(), batch_argnums=(1,))
    np.testing.assert_allclose(step(weight, batch), jax.grad(loss)(weight, batch), rtol=1e-4)
