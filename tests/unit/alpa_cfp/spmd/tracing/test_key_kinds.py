"""The kinds of typed random keys by their dtypes."""

import jax
import jax.numpy as jnp
import pytest

from alpa_cfp.spmd.tracing.key_kinds import is_key, key_kind
from alpa_on_jax import errors


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys_are_made_again_of_their_bits_by_the_kind_of_their_dtype(kind: str) -> None:
    keys = jax.random.split(jax.random.key(3, impl=kind), 4)
    again = jax.random.wrap_key_data(jax.random.key_data(keys), impl=key_kind(keys.dtype))
    assert again.dtype == keys.dtype
    assert (again == keys).all()


def test_what_is_no_key_is_none_and_of_no_kind() -> None:
    assert is_key(jax.random.key(0))
    assert not is_key(jax.random.PRNGKey(0))
    assert not is_key(3)
    with pytest.raises(errors.KeyKindError, match="of none of the kinds that can be taken out of their bits"):
        key_kind(jnp.dtype("uint32"))
