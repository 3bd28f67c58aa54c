"""Tracing a step: what is patched meanwhile, what comes back afterwards, and what cannot be traced."""

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import core, linear_util
from jax.api_util import flatten_fun_nokwargs
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpa_on_jax import errors


def trace(fun, *args, batch=(), num_micro_batches=1):
    avals = [alpa.util.abstractify_with_aval(arg) for arg in args]
    is_batch = [i in batch for i in range(len(args))]

    def flat(*args):
        return (fun(*args),)

    return alpa.util.trace_jaxpr_with_micro_batch(linear_util.wrap_init(flat), is_batch, num_micro_batches, avals)


def primitives(jaxpr) -> list[str]:
    return [eqn.primitive.name for eqn in jaxpr.eqns]


def patched_state():
    return (jnp.array, jax.random.uniform, jax.random.bernoulli, jax.random.fold_in, core.Literal.__hash__)


def test_dropout_is_traced_with_the_stateful_generator() -> None:
    drop = nn.Dropout(0.5, deterministic=False)
    jaxpr, _ = trace(lambda x, key: drop.apply({}, x, rngs={"dropout": key}), jnp.ones((4, 4)), jax.random.PRNGKey(0))
    assert "rng_uniform" in primitives(jaxpr)
    assert not any(name.startswith(("threefry", "random_")) for name in primitives(jaxpr))


def test_nested_jits_are_inlined() -> None:
    jaxpr, _ = trace(lambda x: jax.jit(jnp.sin)(x), jnp.ones(3))
    assert primitives(jaxpr) == ["sin"]


def test_a_micro_batch_has_its_share_of_the_batch_dim_only() -> None:
    jaxpr, size = trace(lambda w, x: x @ w, jnp.ones((3, 2)), jnp.ones((8, 3)), batch=(1,), num_micro_batches=4)
    assert size == 2
    assert [v.aval.shape for v in jaxpr.jaxpr.invars] == [(3, 2), (2, 3)]


def test_a_function_that_alpa_puts_in_the_place_of_another_is_the_one_that_is_traced() -> None:
    """Alpa does so for layers of a function that is not differentiated."""
    tree = jax.tree.structure({"x": 0, "scale": 0})

    def plain(batch):
        return {"out": batch["x"] * batch["scale"]}

    def other(batch):
        return {"out": jnp.sin(batch["x"]) * batch["scale"]}

    fun, out_tree = flatten_fun_nokwargs(linear_util.wrap_init(plain), jax.tree.structure(({"x": 0, "scale": 0},)))
    avals = [alpa.util.abstractify_with_aval(jnp.ones(3))] * tree.num_leaves
    fun.f = other
    jaxpr, _ = alpa.util.trace_jaxpr_with_micro_batch(fun, [False, False], 1, avals)
    assert primitives(jaxpr) == ["sin", "mul"]
    assert out_tree() == jax.tree.structure({"out": 0})
    fun.f = plain
    fun.stores[0].reset()
    jaxpr, _ = alpa.util.trace_jaxpr_with_micro_batch(fun, [False, False], 1, avals)
    assert primitives(jaxpr) == ["mul"]


def test_without_a_batch_there_is_no_micro_batch_size() -> None:
    assert trace(jnp.sin, jnp.ones(3))[1] is None


def test_everything_is_restored_after_tracing() -> None:
    before = patched_state()
    trace(jnp.sin, jnp.ones(3))
    assert patched_state() == before


def test_everything_is_restored_when_the_function_raises() -> None:
    before = patched_state()

    def fails(x):
        assert jax.random.uniform is not before[1]
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        trace(fails, jnp.ones(3))
    assert patched_state() == before


def test_a_function_that_needs_a_value_is_an_error_that_names_it() -> None:
    def looks_at_the_value(x):
        return x if x > 0 else -x

    with pytest.raises(errors.NotJittableError, match="boolean conversion"):
        trace(looks_at_the_value, 1.0)


def test_a_batch_that_the_micro_batches_do_not_divide_is_an_error_that_names_both() -> None:
    with pytest.raises(errors.MicroBatchError, match="num_micro_batches=3 does not divide the batch size 8"):
        trace(jnp.sin, jnp.ones((8, 2)), batch=(0,), num_micro_batches=3)


def test_batch_arrays_of_different_length_are_an_error() -> None:
    with pytest.raises(errors.MicroBatchError, match=r"\[4, 8\]"):
        trace(lambda x, y: x.sum() + y.sum(), jnp.ones(8), jnp.ones(4), batch=(0, 1), num_micro_batches=2)


def test_jnp_array_does_not_copy_while_tracing_and_takes_all_its_arguments() -> None:
    jaxpr, _ = trace(lambda x: jnp.array(x, ndmin=2), jnp.ones(3))
    assert "copy" not in primitives(jaxpr)
    assert jaxpr.out_avals[0].shape == (1, 3)


def test_an_argument_looks_the_same_wherever_it_lies() -> None:
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
    value = np.ones((8, 2), np.float32)
    here = jax.device_put(value, jax.devices()[0])
    sharded = jax.device_put(value, NamedSharding(mesh, PartitionSpec("x")))
    avals = {
        alpa.util.abstractify_with_aval(x) for x in (value, here, sharded, jax.ShapeDtypeStruct((8, 2), "float32"))
    }
    assert len(avals) == 1


def test_a_jaxpr_that_alpa_builds_carries_the_effects_of_its_equations() -> None:
    closed = jax.make_jaxpr(lambda x: jax.debug.print("{}", x) or x + 1)(1.0)
    assert closed.effects
    jaxpr = closed.jaxpr
    rebuilt = core.Jaxpr(jaxpr.constvars, jaxpr.invars, jaxpr.outvars, jaxpr.eqns)
    assert rebuilt.effects == closed.effects
    assert isinstance(rebuilt, core.Jaxpr)


def test_a_copy_of_an_equation_keeps_what_is_not_given() -> None:
    eqn = jax.make_jaxpr(lambda x: jnp.cumsum(x, axis=1))(jnp.ones((2, 3))).eqns[0]
    var = core.gensym([])(eqn.outvars[0].aval)
    clone = alpa.util.clone_jaxpr_eqn(eqn, outvars=[var])
    assert clone.outvars == [var]
    assert (clone.invars, clone.primitive, clone.params, clone.ctx) == (eqn.invars, eqn.primitive, eqn.params, eqn.ctx)


def test_a_named_call_is_evaluated_in_its_place() -> None:
    inner = jax.make_jaxpr(lambda x: x * 2 + 1)(1.0)
    out = core.gensym([])(inner.out_avals[0])
    eqn = alpa.util.new_jaxpr_eqn(
        inner.jaxpr.invars, [out], core.named_call_p, {"name": "stage", "call_jaxpr": inner.jaxpr}
    )
    outer = core.ClosedJaxpr(core.Jaxpr([], inner.jaxpr.invars, [out], [eqn]), [])
    lowered = jax.jit(core.jaxpr_as_fun(outer)).lower(3.0)
    assert lowered.compile()(3.0) == [7.0]
