"""Where the ILP cannot be solved the error says so, and what the ILP knows nothing of runs whole on each device.

What a user cannot bring about in a test (a solver that runs out of time, or is not installed) is put in its place.
Invariant: after each error a call of the same function works, in the same process.
"""

import functools
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pulp
import pytest
from alpa import AutoShardingOption, ShardParallel
from alpa.shard_parallel import compile_executable

from alpa_cfp_bench.workloads.meshes import logical_mesh
from alpa_on_jax import errors
from integration.serial import assert_equal_up_to_rounding, run_serially

pytestmark = pytest.mark.slow


def weights() -> jax.Array:
    return jnp.linspace(-1, 1, 64, dtype=jnp.float32).reshape(8, 8)


def batch() -> jax.Array:
    return jnp.linspace(0, 1, 128, dtype=jnp.float32).reshape(16, 8)


def hidden(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(jnp.tanh(x @ w) @ w.T)


def parallel(function: Callable[..., Any] = hidden, mesh: str = "2x4", **options: Any) -> Any:
    """`function(w, x)` as alpa's ILP shards it; each call gives a function of its own, compiled anew."""
    method = ShardParallel(devices=logical_mesh(mesh), auto_sharding_option=AutoShardingOption(**options))
    return alpa.parallelize(lambda w, x: function(w, x), method=method, donate_argnums=())


def assert_works(function: Any) -> None:
    assert_equal_up_to_rounding(np.asarray(function(weights(), batch())), run_serially(hidden, weights(), batch()))


def with_budget(monkeypatch: pytest.MonkeyPatch, budget_bytes: float) -> None:
    """Give the pass a memory budget, as alpa's pipelines can; `ShardParallel` has no option for it."""
    run = functools.partial(compile_executable.run_auto_sharding_pass, memory_budget_per_device=budget_bytes)
    monkeypatch.setattr(compile_executable, "run_auto_sharding_pass", run)


def test_a_memory_budget_that_nothing_fits_into_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    function = parallel()
    with monkeypatch.context() as patch:
        with_budget(patch, 16)
        with pytest.raises(errors.AutoShardingInfeasibleError, match=r"memory budget of .* MiB a device"):
            function(weights(), batch())
    assert_works(function)


def test_with_a_memory_budget_that_is_large_enough_the_program_is_sharded(monkeypatch: pytest.MonkeyPatch) -> None:
    with_budget(monkeypatch, 1 << 20)
    assert_works(parallel())


def test_a_solver_that_runs_out_of_time_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(problem: pulp.LpProblem, *args: Any, **options: Any) -> int:
        # As CBC leaves a problem when its time is up before it has found anything.
        problem.status = pulp.LpStatusNotSolved
        return problem.status

    function = parallel()
    with monkeypatch.context() as patch:
        patch.setattr(pulp.LpProblem, "solve", give_up)
        with pytest.raises(errors.AutoShardingInfeasibleError, match=r"time limit is 600 s.*force_data_parallel"):
            function(weights(), batch())
    assert_works(function)


def test_without_a_solver_the_error_says_how_to_install_one(monkeypatch: pytest.MonkeyPatch) -> None:
    function = parallel()
    with monkeypatch.context() as patch:
        patch.setattr(pulp, "listSolvers", lambda *args, **options: [])
        with pytest.raises(errors.SolverMissingError, match=r"pip install 'pulp<4'"):
            function(weights(), batch())
    assert_works(function)


def repeated(w: jax.Array, x: jax.Array) -> jax.Array:
    return jax.lax.while_loop(lambda c: jnp.sum(c) > 1e-3, lambda c: 0.5 * jnp.tanh(c @ w) ** 2, x)


def scanned(w: jax.Array, x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=5)[0]


def branching(w: jax.Array, x: jax.Array) -> jax.Array:
    return jax.lax.cond(x[0, 0] > 0.5, lambda: x @ w, lambda: x @ (2 * w))


def transformed(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.abs(jnp.fft.fft(x @ w, axis=0))


def factorised(w: jax.Array, x: jax.Array) -> jax.Array:
    return x @ jnp.linalg.cholesky(w.T @ w + 3 * jnp.eye(8))


def sorted_(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.sort(x @ w, axis=1)


def transformed_and_branching(w: jax.Array, x: jax.Array) -> jax.Array:
    return branching(w, transformed(w, x))


WITHOUT_STRATEGIES = {
    repeated: ("while",),
    branching: ("case",),
    transformed: ("fft",),
    factorised: ("custom_call lapack_spotrf_ffi",),
    transformed_and_branching: ("case", "fft"),
}


@pytest.mark.parametrize("mesh", ["1x4", "2x2"])
@pytest.mark.parametrize("function", [*WITHOUT_STRATEGIES, scanned, sorted_], ids=lambda function: function.__name__)
@pytest.mark.filterwarnings("ignore:Detect unexpected behaviors")
def test_an_op_without_strategies_gives_the_serial_result(function: Callable[..., Any], mesh: str) -> None:
    actual = parallel(function, mesh)(weights(), batch())
    assert_equal_up_to_rounding(np.asarray(actual), run_serially(function, weights(), batch()))


@pytest.mark.parametrize("function", WITHOUT_STRATEGIES, ids=lambda function: function.__name__)
@pytest.mark.filterwarnings("ignore:Detect unexpected behaviors")
def test_ops_without_strategies_are_named_in_one_warning(
    function: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="alpa_on_jax.xla_extension.auto_sharding"):
        parallel(function, "1x4")(weights(), batch())
    (message,) = [record.getMessage() for record in caplog.records if "no strategies" in record.getMessage()]
    assert f"no strategies for {', '.join(WITHOUT_STRATEGIES[function])}:" in message


def test_an_op_with_strategies_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="alpa_on_jax.xla_extension.auto_sharding"):
        parallel(sorted_, "1x4")(weights(), batch())
    assert not [record for record in caplog.records if "no strategies" in record.getMessage()]


@pytest.mark.filterwarnings("ignore:Detect unexpected behaviors")
def test_options_that_a_program_cannot_keep_to_are_a_warning_and_the_result_is_right(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Data parallelism excludes the all-gather without which no device has the whole of what it transforms.
    with caplog.at_level(logging.WARNING, logger="alpa_on_jax.xla_extension.auto_sharding"):
        actual = parallel(transformed, "1x4", force_data_parallel=True)(weights(), batch())
    assert_equal_up_to_rounding(np.asarray(actual), run_serially(transformed, weights(), batch()))
    (message,) = [record.getMessage() for record in caplog.records if "exclude each other" in record.getMessage()]
    assert "fft [8, 16]" in message  # JAX transforms the last dim, so the batch was moved there
    assert "no force_data_parallel" in message


def test_options_that_a_program_can_keep_to_are_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="alpa_on_jax.xla_extension.auto_sharding"):
        parallel(hidden, "1x4", force_data_parallel=True)(weights(), batch())
    assert not caplog.records


# In a process of its own, since a callback that reaches the devices ends the process.
_CALLBACKS = """
import alpa, jax, jax.numpy as jnp, numpy as np
from alpa_on_jax.errors import HostCallbackError

def shape(x): return jax.ShapeDtypeStruct(x.shape, x.dtype)
def pure(x): return jax.pure_callback(np.negative, shape(x), x)
def io(x): return jax.experimental.io_callback(np.negative, shape(x), x)
def branch(x): return jax.lax.cond(x.sum() > 0, pure, lambda x: -x, x)
def printed(x): jax.debug.print("{}", x); return -x
def in_order(x): jax.debug.print("{}", x, ordered=True); return -x
def seen(x): jax.debug.callback(lambda x: None, x); return -x
def plain(x): return -x

w, x = jnp.ones((8, 8)), jnp.ones((16, 8))
for call in (pure, io, branch, printed, in_order, seen, plain):
    for enable in (True, False):
        def layers(w, x): return call(x @ w) @ w
        option = alpa.AutoShardingOption(enable_auto_sharding=enable)
        parallel = alpa.parallelize(layers, method=alpa.ShardParallel(auto_sharding_option=option), donate_argnums=())
        try:
            print(np.asarray(parallel(w, x)).sum())
        except HostCallbackError as error:
            print(str(error).split("does so by ")[1].split(":")[0])
"""


def test_callbacks_whose_results_are_used_are_an_error_that_names_them_and_others_are_left_out() -> None:
    process = subprocess.run(
        [sys.executable, "-c", _CALLBACKS], capture_output=True, text=True, check=False, timeout=300
    )
    assert process.returncode == 0, process.stderr[-2000:]
    said = ("pure_callback", "io_callback", "pure_callback", *["-8192.0"] * 4)
    assert process.stdout.split() == [each for each in said for _ in range(2)]
    assert process.stderr.count("calls back into Python whose results nothing uses are left out") == 6
