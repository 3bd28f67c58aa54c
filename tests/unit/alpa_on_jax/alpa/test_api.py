"""What a call of a parallelized function does with its arguments, and what a wrong call says."""

import alpa
import jax
import jax.numpy as jnp
import pytest
from alpa.parallel_method import ParallelMethod

from alpa_on_jax import errors


class Recorder(ParallelMethod):
    """Compiles nothing: keeps what it was asked to compile, and runs the function as it is."""

    def __init__(self) -> None:
        self.calls: list[dict] = []

    def compile_executable(self, fun, in_tree, out_tree_thunk, static_argnums, donated_invars, batch_invars, *avals):
        self.calls.append({"static": static_argnums, "donated": donated_invars, "batch": batch_invars, "avals": avals})

        class Executable:
            def launch_on_driver(self, *args):
                return fun.call_wrapped(*args)

        # The structure of the results is known once the function has been traced.
        jax.eval_shape(fun.call_wrapped, *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals))
        for store in fun.stores:
            if store:
                store.reset()
        jaxpr_args = [jnp.zeros(a.shape, a.dtype) for a in avals]
        fun.call_wrapped(*jaxpr_args)
        executable = Executable()
        executable.launch_on_driver = lambda *args: jax.tree.leaves(self.run(*args))  # type: ignore[method-assign]
        return executable

    run = staticmethod(lambda *args: args)


def recorded(fun, *args, **options) -> dict:
    method = Recorder()
    alpa.parallelize(fun, method=method, **options).get_executable(*args)
    (call,) = method.calls
    return call


def test_the_second_argument_is_the_batch_and_scalars_in_it_are_not() -> None:
    call = recorded(lambda w, b: w + b["x"].sum() + b["n"], jnp.ones(2), {"n": jnp.ones(()), "x": jnp.ones((4, 2))})
    assert call["batch"] == (False, False, True)


def test_a_number_is_a_static_argument_unless_the_user_says_otherwise() -> None:
    def scale(x, n):
        return x * n

    assert recorded(scale, jnp.ones(2), 3)["static"] == (1,)
    assert len(recorded(scale, jnp.ones(2), 3, static_argnums=())["avals"]) == 2


def test_a_static_dictionary_can_hold_what_is_no_array() -> None:
    call = recorded(lambda x, c: x * c["n"] if c["mode"] == "mul" else x, jnp.ones(2), {"mode": "mul", "n": 2})
    assert call["static"] == (1,)


def test_donated_arguments_are_counted_without_the_static_ones() -> None:
    call = recorded(
        lambda n, x, y: x * n + y["a"], 2, jnp.ones(2), {"a": jnp.ones(2)}, static_argnums=0, donate_argnums=(-1,)
    )
    assert call["donated"] == (False, True)


def test_equal_shapes_are_compiled_once_and_other_shapes_again() -> None:
    method = Recorder()
    f = alpa.parallelize(lambda x: x * 2, method=method, batch_argnums=())
    assert f.get_executable(jnp.ones(2)) is f.get_executable(jnp.zeros(2)) is f.get_last_executable()
    assert f.get_executable(jnp.ones(3)) is not f.get_executable(jnp.ones(2))
    assert len(method.calls) == 2


def test_one_decorator_can_be_used_for_several_functions() -> None:
    parallel = alpa.parallelize(method=Recorder(), batch_argnums=())
    f, g = parallel(jnp.sin), parallel(jnp.cos)
    assert f.fun is not g.fun


@pytest.mark.parametrize("value", [3, jnp.ones(2), "train_step"])
def test_something_that_is_no_function_is_an_error(value: object) -> None:
    with pytest.raises(errors.NotCallableError, match="expects a function"):
        alpa.parallelize(value)


def test_a_method_that_is_none_is_an_error() -> None:
    with pytest.raises(errors.MethodError, match="no ParallelMethod"):
        alpa.parallelize(jnp.sin, method="data parallel")


def test_an_argument_that_is_no_array_is_an_error_that_says_where_it_is() -> None:
    def train_step(state, batch):
        return state

    f = alpa.parallelize(train_step, static_argnums=(), method=Recorder())
    with pytest.raises(errors.NotAnArrayError, match=r"train_step: args\[1\]\['name'\] is 'x' of type str"):
        f(jnp.ones(2), {"x": jnp.ones(2), "name": "x"})
    f = alpa.parallelize(train_step, method=Recorder())
    with pytest.raises(errors.NotAnArrayError, match=r"args\[1\]\['name'\]"):
        f(jnp.ones(2), {"x": jnp.ones(2), "name": "x"})


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"static_argnums": 5}, r"static_argnums=5 is out of range: the call has 2 arguments"),
        ({"donate_argnums": ("a",)}, r"donate_argnums=\('a',\) is neither a number"),
        ({"static_argnums": (1,), "donate_argnums": (1,)}, r"donates static arguments: \[1\]"),
    ],
)
def test_argument_numbers_that_do_not_fit_are_an_error(options: dict, match: str) -> None:
    with pytest.raises(errors.ArgnumsError, match=match):
        alpa.parallelize(lambda x, n: x, method=Recorder(), **options)(jnp.ones(2), 3)


def test_a_function_that_needs_values_is_an_error_and_can_be_called_again() -> None:
    def absolute(x):
        return x if x > 0 else -x

    f = alpa.parallelize(absolute, batch_argnums=(), static_argnums=())
    for _ in range(2):
        with pytest.raises(errors.NotJittableError, match="absolute"):
            f(jnp.float32(1.0))
        assert f.get_last_executable() is None


def test_a_result_that_is_no_array_is_an_error_that_names_function_and_type() -> None:
    def named(x):
        return {"x": x, "name": "x"}

    with pytest.raises(TypeError, match=r"named.*str"):
        alpa.parallelize(named, batch_argnums=(), static_argnums=())(jnp.ones(8))


def test_a_cluster_of_an_unknown_kind_leaves_alpa_uninitialised() -> None:
    with pytest.raises(errors.ClusterError, match="neither"):
        alpa.init(cluster="slurm")
    assert not alpa.api.is_initialized


def test_alpa_can_be_initialised_and_shut_down_locally_more_than_once() -> None:
    for _ in range(2):
        alpa.init(cluster="local")
        assert alpa.api.is_initialized
        alpa.shutdown()
        assert not alpa.api.is_initialized


def test_shutting_down_without_initialising_is_an_error() -> None:
    with pytest.raises(errors.ClusterError, match=r"alpa\.init has not been called"):
        alpa.shutdown()
