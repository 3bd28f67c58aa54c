"""Bad input gets an error that says what failed, with which value, and leaves nothing half done.

Each case is a call that must fail, the class and words of its error, and after it, in the same process, calls that must
work: what a failure leaves behind (a running timer, replaced random functions, a cached half-compiled program) shows
in the next call and not in its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa import (
    AutoShardingOption,
    CreateStateParallel,
    DataParallel,
    FollowParallel,
    LocalPhysicalDeviceMesh,
    ManualShardingOption,
    ShardParallel,
    mesh_profiling,
)
from alpa.parallel_method import LocalPipelineParallel
from alpa.shard_parallel.auto_sharding import LogicalDeviceMesh
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpa_cfp_bench.workloads.meshes import logical_mesh
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.sizes import MESH_AXES
from alpa_on_jax import errors
from integration.serial import assert_equal_up_to_rounding

pytestmark = pytest.mark.slow

NO_SOLVER = AutoShardingOption(enable_auto_sharding=False)
SPECS = (PartitionSpec(None, "model"), PartitionSpec("data"))


def weights() -> jax.Array:
    return jnp.linspace(-1, 1, 64, dtype=jnp.float32).reshape(8, 8)


def batch(size: int = 16) -> jax.Array:
    return jnp.linspace(0, 1, size * 8, dtype=jnp.float32).reshape(size, 8)


def loss(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.mean((x @ w) ** 2)


def step(w: jax.Array, x: jax.Array) -> jax.Array:
    return w - alpa.grad(lambda w: loss(w, x))(w)


def step_with_jax_grad(w: jax.Array, x: jax.Array) -> jax.Array:
    return w - jax.grad(lambda w: loss(w, x))(w)


def step_with_two_grads(w: jax.Array, x: jax.Array) -> jax.Array:
    return w - alpa.grad(lambda w: loss(w, x))(w) - alpa.grad(lambda w: jnp.sum(w))(w)


def step_with_a_value_of_the_batch(w: jax.Array, x: jax.Array) -> jax.Array:
    scale = jnp.max(x)
    return w - scale * alpa.grad(lambda w: loss(w, x))(w)


def step_with_a_constraint(w: jax.Array, x: jax.Array) -> jax.Array:
    rows = NamedSharding(Mesh(np.array(jax.devices()), ("rows",)), PartitionSpec("rows"))
    return w - 0.1 * alpa.grad(lambda w: loss(w, jax.lax.with_sharding_constraint(x, rows)))(w)


def parallel(function: Callable[..., Any] = step, num_micro_batches: int | None = None, **options: Any) -> Any:
    """`function(w, x)` on the 2x4 mesh; the options are those of ShardParallel and of ManualShardingOption."""
    manual = {"mesh_axis_names": MESH_AXES, "in_axis_resources": SPECS}
    manual |= {
        key: options.pop(key)
        for key in ("in_axis_resources", "out_axis_resources", "mesh_axis_names")
        if key in options
    }
    method = ShardParallel(
        num_micro_batches=num_micro_batches,
        **{
            "devices": logical_mesh("2x4"),
            "auto_sharding_option": NO_SOLVER,
            "manual_sharding_option": ManualShardingOption(**manual),
        }
        | options,
    )
    return alpa.parallelize(function, method=method, donate_argnums=())


def solved(
    function: Callable[..., Any] = step, mesh: Any = "2x4", num_micro_batches: int | None = None, **options: Any
) -> Any:
    """`function(w, x)` with shardings that alpa's ILP chooses; the options are those of AutoShardingOption."""
    method = ShardParallel(
        devices=logical_mesh(mesh) if isinstance(mesh, str) else mesh,
        num_micro_batches=num_micro_batches,
        auto_sharding_option=AutoShardingOption(**options),
    )
    return alpa.parallelize(function, method=method, donate_argnums=())


def physical_mesh() -> LocalPhysicalDeviceMesh:
    return LocalPhysicalDeviceMesh(jax.devices()[:8])


@dataclass(frozen=True)
class Case:
    """A call that must fail.

    Attributes:
        name: what is wrong.
        call: the call.
        error: the class of the error.
        message: a regular expression that it must match: the value that is wrong is in it.
    """

    name: str
    call: Callable[[], Any]
    error: type[Exception]
    message: str


def _following_before_its_source() -> Any:
    return alpa.parallelize(loss, method=FollowParallel(parallel()))(weights(), batch())


def _following_what_is_no_train_step() -> Any:
    source = parallel()
    source(weights(), batch())
    return alpa.parallelize(loss, method=FollowParallel(source))(weights(), batch())


def _following_with_other_arguments() -> Any:
    model = build("mlp")
    source = alpa.parallelize(train_step(model, alpa.value_and_grad), method=ShardParallel())
    source(jax.tree.map(np.array, model.state), model.batch)
    follow = alpa.parallelize(lambda params, batch, scale: scale, method=FollowParallel(source))
    return follow(model.state.params, model.batch, np.ones(4, np.float32))


def _following_with_too_few_placements() -> Any:
    source = parallel()
    source(weights(), batch())
    method = FollowParallel(source, get_input_placement_specs=lambda: (None,))
    return alpa.parallelize(lambda w, x: x, method=method)(weights(), batch())


CASES = [
    # Meshes.
    Case(
        "a mesh of more devices than there are",
        lambda: LocalPhysicalDeviceMesh(jax.devices()[:8]).get_logical_mesh((4, 4)),
        errors.MeshShapeError,
        r"\(4, 4\) needs 16 devices.* has 8",
    ),
    Case(
        "a mesh with a device twice",
        lambda: LocalPhysicalDeviceMesh([*jax.devices()[:2], jax.devices()[0]]),
        errors.MeshShapeError,
        "each device once",
    ),
    Case("a mesh without devices", lambda: LocalPhysicalDeviceMesh([]), errors.MeshShapeError, "at least one device"),
    Case(
        "devices that are no mesh",
        lambda: parallel(devices="gpu")(weights(), batch()),
        errors.MethodOptionError,
        "devices='gpu' of type str",
    ),
    Case(
        "a logical mesh of three axes",
        lambda: physical_mesh().get_logical_mesh((2, 2, 2)),
        errors.MeshShapeError,
        r"mesh_shape=\(2, 2, 2\) is no shape of a logical mesh",
    ),
    Case(
        "a logical mesh with an axis of no devices",
        lambda: physical_mesh().get_logical_mesh((0, 8)),
        errors.MeshShapeError,
        r"mesh_shape=\(0, 8\)",
    ),
    Case(
        "a latency for one axis only",
        lambda: physical_mesh().get_logical_mesh((2, 4), mesh_alpha=[1]),  # type: ignore[arg-type]
        errors.MeshShapeError,
        r"mesh_alpha=\[1\] must be two numbers",
    ),
    Case(
        "a negative inverse bandwidth",
        lambda: physical_mesh().get_logical_mesh((2, 4), mesh_beta=(1, -1)),  # type: ignore[arg-type]
        errors.MeshShapeError,
        r"mesh_beta=\(1, -1\) must be two numbers",
    ),
    Case(
        "a logical mesh over some devices of the physical one",
        lambda: solved(mesh=LogicalDeviceMesh(physical_mesh(), np.arange(4).reshape(2, 2)))(weights(), batch()),
        errors.MeshShapeError,
        r"\(2, 2\) needs 4 devices.* has 8",
    ),
    # Batches.
    Case(
        "a batch that the mesh does not divide",
        lambda: parallel()(weights(), batch(17)),
        errors.IndivisibleShardingError,
        r"input 1 of shape \(17, 8\).*\(2, 4\)",
    ),
    Case(
        "a micro-batch that the mesh does not divide",
        lambda: parallel(num_micro_batches=2)(weights(), batch(18)),
        errors.IndivisibleShardingError,
        r"input 1 of shape \(9, 8\).*\(2, 4\)",
    ),
    Case(
        "micro-batches that do not divide the batch",
        lambda: parallel(num_micro_batches=3)(weights(), batch(16)),
        errors.MicroBatchError,
        "num_micro_batches=3 does not divide the batch size 16",
    ),
    Case(
        "no micro-batches",
        lambda: parallel(num_micro_batches=0)(weights(), batch()),
        errors.MicroBatchError,
        "num_micro_batches is 0",
    ),
    Case(
        "a fractional number of micro-batches",
        lambda: parallel(num_micro_batches=2.5)(weights(), batch()),  # type: ignore[arg-type]
        errors.MicroBatchError,
        r"num_micro_batches is 2\.5",
    ),
    Case(
        "a batch that data parallelism does not divide",
        lambda: solved(force_data_parallel=True)(weights(), batch(17)),
        errors.BatchDimError,
        r"shape \(17, 8\).*dim 0.*8 devices along axis 0",
    ),
    Case(
        "a batch that DataParallel does not divide",
        lambda: alpa.parallelize(step, method=DataParallel(logical_mesh("1x8")), donate_argnums=())(
            weights(), batch(17)
        ),
        errors.BatchDimError,
        r"shape \(17, 8\).*8 devices",
    ),
    Case(
        "a micro-batch that data parallelism does not divide",
        lambda: solved(num_micro_batches=2, force_data_parallel=True)(weights(), batch(24)),
        errors.BatchDimError,
        r"shape \(12, 8\).*8 devices.*that of one micro-batch",
    ),
    Case(
        "a batch that axis 0 of a 2D mesh does not divide",
        lambda: solved()(weights(), batch(17)),
        errors.BatchDimError,
        r"shape \(17, 8\).*2 devices along axis 0",
    ),
    Case(
        "a batch that the axis it is forced to does not divide",
        lambda: solved(force_batch_dim_to_mesh_dim=1)(weights(), batch(18)),
        errors.BatchDimError,
        r"shape \(18, 8\).*4 devices along axis 1",
    ),
    # Functions and arguments.
    Case(
        "a function that is not jittable",
        lambda: parallel(lambda w, x: w if x.sum() > 0 else -w)(weights(), batch()),
        errors.NotJittableError,
        "cannot be compiled.*boolean conversion",
    ),
    Case(
        "a function that is not jittable, with micro-batches",
        lambda: parallel(lambda w, x: w * float(x[0, 0]), num_micro_batches=2)(weights(), batch()),
        errors.NotJittableError,
        "cannot be compiled.*concrete value",
    ),
    Case(
        "a function that gives back what is no array",
        lambda: parallel(lambda w, x: {"w": w, "name": "step"})(weights(), batch()),
        errors.NotJittableError,
        "'step' of type str",
    ),
    Case(
        "something that is no function",
        lambda: alpa.parallelize(3, method=ShardParallel()),
        errors.NotCallableError,
        "expects a function, but got 3",
    ),
    Case(
        "a method that is none",
        lambda: alpa.parallelize(step, method=ShardParallel),
        errors.MethodError,
        "is no ParallelMethod",
    ),
    Case(
        "an argument that is no array",
        lambda: alpa.parallelize(step, method=parallel().method, static_argnums=())({"w": object()}, batch()),
        errors.NotAnArrayError,
        r"args\[0\]\['w'\] is <object .* of type object",
    ),
    Case(
        "an error of the function's own",
        lambda: parallel(lambda w, x: w + {}["missing"])(weights(), batch()),
        KeyError,
        "missing",
    ),
    # Shardings.
    Case(
        "an unknown mesh axis",
        lambda: parallel(in_axis_resources=(PartitionSpec("tensor"), PartitionSpec("data")))(weights(), batch()),
        errors.ShardingOptionError,
        r"'tensor'.*\('data', 'model'\)",
    ),
    Case(
        "a mesh axis on two dims",
        lambda: parallel(in_axis_resources=(PartitionSpec("model", "model"), PartitionSpec()))(weights(), batch()),
        errors.ShardingOptionError,
        "'model' twice",
    ),
    Case(
        "a spec of more dims than the array",
        lambda: parallel(in_axis_resources=(PartitionSpec(None, None, "model"), PartitionSpec()))(weights(), batch()),
        errors.ShardingOptionError,
        "'model' on dim 2, but the array has 2 dims",
    ),
    Case(
        "specs of another structure than the arguments",
        lambda: parallel(in_axis_resources=(PartitionSpec(),) * 3)(weights(), batch()),
        errors.ShardingOptionError,
        "in_axis_resources must have the structure of the function's arguments",
    ),
    Case(
        "a spec that is no PartitionSpec",
        lambda: parallel(in_axis_resources=("data", PartitionSpec()))(weights(), batch()),
        errors.ShardingOptionError,
        "'data' is no PartitionSpec",
    ),
    Case(
        "a result that its spec does not divide",
        lambda: parallel(lambda w, x: x[:3], out_axis_resources=PartitionSpec("data"))(weights(), batch()),
        errors.IndivisibleShardingError,
        r"output 0 of shape \(3, 8\)",
    ),
    Case(
        "fewer names than mesh axes",
        lambda: parallel(mesh_axis_names=("data",))(weights(), batch()),
        errors.ShardingOptionError,
        r"mesh_axis_names=\('data',\).*shape \(2, 4\)",
    ),
    Case(
        "no names of mesh axes",
        lambda: parallel(mesh_axis_names=None)(weights(), batch()),
        errors.ShardingOptionError,
        "mesh_axis_names=None",
    ),
    Case(
        "one name for two mesh axes",
        lambda: parallel(mesh_axis_names=("data", "data"), in_axis_resources=PartitionSpec("data"))(weights(), batch()),
        errors.ShardingOptionError,
        "same name for two axes",
    ),
    Case(
        "manual sharding together with the solver",
        lambda: parallel(auto_sharding_option=AutoShardingOption(enable_auto_sharding=True))(weights(), batch()),
        errors.HybridShardingError,
        "together with enable_auto_sharding=True",
    ),
    # Options of the solver.
    Case(
        "a mesh axis that there is not",
        lambda: solved(force_batch_dim_to_mesh_dim=2)(weights(), batch()),
        errors.MethodOptionError,
        "force_batch_dim_to_mesh_dim=2 is no axis",
    ),
    Case(
        "an unknown heuristic",
        lambda: solved(force_simple_heuristic="shard-middle")(weights(), batch()),
        errors.HeuristicError,
        "'shard-middle'.*'shard-largest', 'shard-first', 'shard-last'",
    ),
    Case(
        "options that are none",
        lambda: parallel(auto_sharding_option={"enable_auto_sharding": False})(weights(), batch()),
        errors.MethodOptionError,
        "auto_sharding_option=.* of type dict",
    ),
    # Methods that build on other functions, and marks.
    Case(
        "following a function that has not run",
        _following_before_its_source,
        errors.FollowError,
        "step has not been compiled",
    ),
    Case(
        "following a function of other arguments",
        _following_what_is_no_train_step,
        errors.FollowError,
        r"expected to be \(state, batch\)",
    ),
    Case(
        "following with an argument more than (state.params, batch)",
        _following_with_other_arguments,
        errors.FollowError,
        r"arguments, of \d+ or \d+ arrays, do not fit the \d+ arrays of the function that follows",
    ),
    Case(
        "following by too few placements",
        _following_with_too_few_placements,
        errors.FollowError,
        "arguments, of 1 arrays, do not fit the 2 arrays of the function that follows",
    ),
    Case(
        "overlapping, which is in the fork of jaxlib",
        lambda: setattr(alpa.global_config, "enable_overlapping", True),
        errors.NeedsForkError,
        "enable_overlapping=True needs functions of Alpa's fork of jaxlib",
    ),
    Case(
        "measuring single ops, whose loops are made by the fork of jaxlib",
        lambda: mesh_profiling.profile_hlo_ops([], None, [], 0, 1, "", None),
        errors.NeedsForkError,
        "profile_hlo_ops builds its programs by XlaBuilder",
    ),
    Case(
        "following a plain function", lambda: FollowParallel(step), errors.MethodOptionError, "src_func=<function step"
    ),
    Case(
        "creating a state for a plain function",
        lambda: CreateStateParallel(step, batch()),
        errors.MethodOptionError,
        "train_step=<function step",
    ),
    Case(
        "a function that asks for shardings over a mesh of its own",
        lambda: parallel(step_with_a_constraint)(weights(), batch()),
        errors.NamedMeshError,
        r"the function asks for shardings over a mesh with the axes .*rows.*, but alpa chooses meshes by itself",
    ),
    Case(
        "micro-batches without a gradient mark",
        lambda: parallel(step_with_jax_grad, num_micro_batches=2)(weights(), batch()),
        errors.GradientMarkerError,
        r"neither alpa\.grad nor alpa\.value_and_grad",
    ),
    Case(
        "micro-batches with two gradient marks",
        lambda: parallel(step_with_two_grads, num_micro_batches=2)(weights(), batch()),
        errors.GradientMarkerError,
        "calls them 2 times",
    ),
    Case(
        "an update that uses a value of a micro-batch",
        lambda: parallel(step_with_a_value_of_the_batch, num_micro_batches=2)(weights(), batch()),
        errors.GradientMarkerError,
        r"uses values of the part before: .*reduce_max.*test_errors\.py",
    ),
    Case(
        "a pipeline without layers",
        lambda: alpa.parallelize(step, method=LocalPipelineParallel())(weights(), batch()),
        errors.LayerMarkerError,
        "in no pipeline layer",
    ),
    Case("an unknown kind of cluster", lambda: alpa.init(cluster="cloud"), errors.ClusterError, "cluster='cloud'"),
    Case("a Ray cluster without a name", lambda: alpa.init(cluster="ray"), errors.NoClusterError, "was named"),
    Case("shutting down what was not started", alpa.shutdown, errors.ClusterError, "alpa.init has not been called"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_fails_with_a_clear_error_and_the_next_calls_work(case: Case) -> None:
    normal, array = jax.random.normal, jnp.array
    with pytest.raises(case.error, match=case.message) as raised:
        case.call()
    assert not isinstance(raised.value, AssertionError)
    assert jax.random.normal is normal
    assert jnp.array is array
    # Functions of their own, so that nothing comes from a cache that was filled before.
    expected = np.asarray(jax.jit(step_with_jax_grad)(weights(), batch()))
    for num_micro_batches in (None, 2):
        actual = parallel(lambda w, x: step(w, x), num_micro_batches)(weights(), batch())
        assert_equal_up_to_rounding(np.asarray(actual), expected)


def test_the_same_function_works_after_a_call_that_failed() -> None:
    function = parallel()
    with pytest.raises(errors.IndivisibleShardingError):
        function(weights(), batch(17))
    with pytest.raises(errors.IndivisibleShardingError):
        function(weights(), batch(17))
    expected = np.asarray(jax.jit(step_with_jax_grad)(weights(), batch()))
    assert_equal_up_to_rounding(np.asarray(function(weights(), batch())), expected)


def test_a_call_that_fails_before_it_runs_does_not_delete_what_it_would_have_donated() -> None:
    function = alpa.parallelize(step, method=parallel().method, donate_argnums=(0,))
    w = weights()
    with pytest.raises(errors.IndivisibleShardingError):
        function(w, batch(17))
    assert not w.is_deleted()
    expected = np.asarray(jax.jit(step_with_jax_grad)(weights(), batch()))
    assert_equal_up_to_rounding(np.asarray(function(w, batch())), expected)
