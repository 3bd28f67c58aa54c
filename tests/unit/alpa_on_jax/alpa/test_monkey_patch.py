"""The random functions and the embedding that alpa puts in while it traces."""

import inspect

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

pytestmark = pytest.mark.slow

NAMES = ["uniform", "normal", "truncated_normal", "bernoulli", "fold_in"]


@pytest.fixture
def fast_random():
    alpa.monkey_patch.monkey_patch_random()
    yield
    alpa.monkey_patch.restore_random()


@pytest.mark.parametrize("name", NAMES)
def test_a_fast_function_takes_every_argument_of_the_one_that_it_replaces(name: str) -> None:
    original = inspect.signature(getattr(jax.random, name)).parameters
    alpa.monkey_patch.monkey_patch_random()
    fast = inspect.signature(getattr(jax.random, name)).parameters
    alpa.monkey_patch.restore_random()
    assert set(original) <= set(fast)
    positional = [n for n, p in original.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert list(fast)[: len(positional)] == positional or name == "fold_in"


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_uniform_values_lie_in_their_range(fast_random: None, dtype: jnp.dtype) -> None:
    x = jax.jit(lambda: jax.random.uniform(None, (1000,), dtype, minval=2.0, maxval=4.0))()
    assert x.dtype == dtype
    assert 2.0 <= x.min() < 2.5
    assert 3.5 < x.max() <= 4.0


def test_normal_values_have_their_mean_and_deviation(fast_random: None) -> None:
    x = np.asarray(jax.jit(lambda: jax.random.normal(None, (100_000,), mu=3.0, sigma=2.0))())
    # Eight standard errors.
    assert abs(x.mean() - 3.0) < 8 * 2.0 / 100_000**0.5
    assert abs(x.std() - 2.0) < 8 * 2.0 / 200_000**0.5


def test_truncated_values_lie_between_the_bounds(fast_random: None) -> None:
    x = jax.jit(lambda: jax.random.truncated_normal(None, -1.0, 0.5, (1000,)))()
    assert x.shape == (1000,)
    assert -1.0 < x.min() < x.max() < 0.5


def test_booleans_are_true_with_their_probability(fast_random: None) -> None:
    x = np.asarray(jax.jit(lambda: jax.random.bernoulli(None, p=0.9, shape=(100_000,)))())
    assert x.dtype == bool
    assert abs(x.mean() - 0.9) < 8 * 0.3 / 100_000**0.5


def test_other_random_functions_use_the_fast_ones(fast_random: None) -> None:
    with jax.disable_jit():
        jaxpr = jax.make_jaxpr(lambda key: jax.random.exponential(key, (4,)))(jax.random.PRNGKey(0))
    assert "rng_uniform" in [eqn.primitive.name for eqn in jaxpr.eqns]


def test_patching_twice_and_restoring_once_gives_jaxs_functions_back() -> None:
    before = [getattr(jax.random, name) for name in NAMES]
    alpa.monkey_patch.monkey_patch_random()
    alpa.monkey_patch.monkey_patch_random()
    alpa.monkey_patch.restore_random()
    assert [getattr(jax.random, name) for name in NAMES] == before


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, None])
def test_an_embedding_gives_its_rows_without_a_gather(dtype: jnp.dtype | None) -> None:
    embed = nn.Embed(10, 4, dtype=dtype)
    ids = jnp.array([[1, 2, 9], [0, 0, 3]])
    variables = embed.init(jax.random.PRNGKey(0), ids)
    out = embed.apply(variables, ids)
    rows = variables["params"]["embedding"][ids]
    assert out.dtype == (dtype or rows.dtype)
    np.testing.assert_array_equal(out, rows.astype(out.dtype))
    names = [eqn.primitive.name for eqn in jax.make_jaxpr(embed.apply)(variables, ids).eqns]
    assert "dot_general" in names
    assert "gather" not in names


def test_an_embedding_of_floats_is_an_error() -> None:
    with pytest.raises(ValueError, match="Input type must be an integer or unsigned integer"):
        nn.Embed(10, 4).init(jax.random.PRNGKey(0), jnp.ones(3))


def test_a_model_can_be_initialised_with_dummy_values() -> None:
    params = nn.Dense(3).init_dummy(jax.random.PRNGKey(0), jnp.ones((2, 4)))
    assert {x.shape for x in jax.tree.leaves(params)} == {(4, 3), (3,)}
    assert all((x == np.float32(1e-8)).all() for x in jax.tree.leaves(params))
