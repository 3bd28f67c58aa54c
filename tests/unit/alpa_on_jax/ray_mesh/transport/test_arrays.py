"""What arrives is what was sent."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from alpa_on_jax.ray_mesh.transport import ArrayMismatchError, ArrayTypeError, RankError, message

pytestmark = pytest.mark.slow

_DTYPES = [*"?bBhHiIqQefdFD", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4]
_ARRAYS = st.sampled_from(_DTYPES).flatmap(
    lambda dtype: npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5).map(
        lambda shape: np.random.default_rng(len(shape)).integers(0, 7, shape).astype(dtype)
    )
)


@given(array=_ARRAYS, order=st.sampled_from("CF"), step=st.integers(1, 2))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_array_of_any_shape_dtype_and_layout_arrives_as_it_was(connect, array, order, step):
    zero, one = _pair(connect)
    array = np.asarray(array, order=order)[..., ::step] if array.ndim else array
    zero.send("t", array, 1)
    got = one.recv("t", array.shape, array.dtype, 0)
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got, array)


_PAIRS = {}


def _pair(connect):
    # One group for all examples of a test.
    return _PAIRS[connect] if connect in _PAIRS else _PAIRS.setdefault(connect, connect())


def test_a_jax_array_is_sent_and_bfloat16_comes_back_to_jax_unchanged(connect):
    zero, one = connect()
    array = jnp.linspace(-3, 3, 64, dtype=jnp.bfloat16).reshape(8, 8)
    zero.send("t", array, 1)
    got = jax.device_put(one.recv("t", (8, 8), jnp.bfloat16, 0))
    assert got.dtype == jnp.bfloat16
    assert bool((got == array).all())


def test_big_endian_arrays_arrive_in_the_order_of_the_machine(connect):
    zero, one = connect()
    zero.send("t", np.arange(5, dtype=">i4"), 1)
    np.testing.assert_array_equal(one.recv("t", (5,), np.int32, 0), range(5))


def test_received_arrays_are_aligned_so_that_jax_takes_them_without_a_copy(connect):
    zero, one = connect()
    zero.send("t", np.ones(1001, np.int8), 1)
    assert one.recv("t", (1001,), np.int8, 0).ctypes.data % message.ALIGNMENT_BYTES == 0


def test_the_sender_may_change_its_array_once_send_has_returned(connect):
    zero, one = connect()
    array = np.ones(300_000)
    zero.send("t", array, 1)
    array[:] = 2
    assert (one.recv("t", array.shape, array.dtype, 0) == 1).all()


@pytest.mark.parametrize("array", [np.array([None]), np.array(["a"]), np.zeros(2, "i4,f4"), np.zeros(2, "M8[s]")])
def test_arrays_whose_bytes_mean_nothing_elsewhere_are_refused(connect, array):
    zero, _ = connect()
    with pytest.raises(ArrayTypeError, match="cannot be sent"):
        zero.send("t", array, 1)


@pytest.mark.parametrize(("shape", "dtype"), [((3, 2), np.float32), ((2, 3), np.int32), ((6,), np.float32)])
def test_another_shape_or_dtype_than_was_asked_for_is_an_error_and_the_next_array_still_comes(connect, shape, dtype):
    zero, one = connect()
    zero.send("t", np.zeros((2, 3), np.float32), 1)
    zero.send("t", np.ones(4), 1)
    with pytest.raises(ArrayMismatchError, match=r"float32\[2,3\] was sent"):
        one.recv("t", shape, dtype, 0)
    assert one.recv("t", (4,), float, 0).sum() == 4


@pytest.mark.parametrize("peer", [0, 2, -1])
def test_a_rank_that_is_no_other_of_the_group_is_an_error(connect, peer):
    zero, _ = connect()
    with pytest.raises(RankError, match=r"the others are \[1\]"):
        zero.send("t", np.ones(1), peer)
