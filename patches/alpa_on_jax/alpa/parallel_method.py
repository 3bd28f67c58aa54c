"""Replacements in `alpa.parallel_method`: what a method checks before it compiles.

Takes what the user gave to a method; raises one of `errors` where alpa has a bare assertion or would fail in the middle
of compiling, and where something is not available. What is compiled, and how, stays alpa's own.
"""

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax

from alpa_on_jax import errors
from alpa_on_jax.alpa.device_mesh import check_mesh_costs, check_mesh_shape
from alpa_on_jax.alpa.global_env import temporarily
from alpa_on_jax.alpa.pipeline_parallel import stage_checks, stage_run
from alpa_on_jax.in_process import place as in_process
from alpa_on_jax.replacing import replace_in_class
from alpa_on_jax.xla_extension.pass_context import known_batch_sizes
from alpa_on_jax.xla_extension.planner import StagePlanner

# `compile_executable` takes fun, in_tree, out_tree_thunk, static_argnums, donated_invars, batch_invars, *avals.
_ARGUMENTS_BEFORE_AVALS = 6


def apply(module: ModuleType) -> None:
    """Check the options of the methods for one mesh; let pipelines without a cluster fail with a reason."""
    _check_pipeshard_parallel(module)
    _check_shard_parallel(module)
    _check_create_state_parallel(module)
    _check_follow_parallel(module)


def _check_pipeshard_parallel(module: ModuleType) -> None:
    compile_original = module.PipeshardParallel.compile_executable

    def compile_executable(self: Any, *args: Any) -> Any:
        """As alpa's own; without a cluster, the stages are on devices of this process.

        Raises:
            errors.StageOptionError: there are more or fewer layers than stages where each is to be one.
            errors.StageOptionError, errors.NeedsForkError, errors.ClusterResourcesError: stages are to be chosen by
                their times, and cannot be timed.
            errors.NoStagesError: none can be chosen.
        """
        if self.devices is None and module.get_global_virtual_physical_mesh() is None:
            device_mesh = sys.modules["alpa.device_mesh"]
            device_mesh.set_global_virtual_physical_mesh(in_process.virtual_mesh(module.VirtualPhysicalMesh))
        if isinstance(self.stage_option, module.UniformStageOption):
            _check_uniform(self.stage_option, self.layer_option)
        if not isinstance(self.stage_option, module.AutoStageOption):
            return compile_original(self, *args)
        mesh, config = self.devices or module.get_global_virtual_physical_mesh(), {}
        if in_process.is_here(mesh):
            if not isinstance(self.as_option, StagePlanner) or not self.as_option.composes:
                raise errors.StageOptionError.here()
            # There is no cluster to be cut into submeshes, only these devices.
            config = {"profile_with_whole_ray_cluster": False}
        run = stage_checks.checked(mesh, self.stage_option, is_cluster=not config)
        with temporarily(sys.modules["alpa.global_env"].global_config, **config), stage_run.started(run):
            return compile_original(self, *args)

    replace_in_class(module.PipeshardParallel, compile_executable)


def _check_uniform(stage_option: Any, layer_option: Any) -> None:
    """Of layers that are marked by hand, nobody knows yet how many there are."""
    stages, layers = stage_option.num_stages, getattr(layer_option, "layer_num", None)
    if stage_option.submesh_physical_shape is None and isinstance(layers, int) and stages not in (None, layers):
        raise errors.StageOptionError.uniform(stages, layers)


def _check_shard_parallel(module: ModuleType) -> None:
    compile_original = module.ShardParallel.compile_executable
    kinds = (list, tuple, module.PhysicalDeviceMesh, module.LogicalDeviceMesh)

    def compile_executable(self: Any, *args: Any) -> Any:
        """As alpa's own, which does not tell the auto-sharding pass of the batch.

        Raises:
            errors.MethodOptionError: `devices` is no mesh, or the auto-sharding option none.
            errors.MeshShapeError: `devices` is a logical mesh that its devices do not form.
            errors.HybridShardingError: manual shardings and the solver were asked for together.
        """
        if self.devices is not None and not isinstance(self.devices, kinds):
            raise errors.MethodOptionError.devices(self.devices)
        if isinstance(self.devices, module.LogicalDeviceMesh):
            _check_logical_mesh(self.devices)
        _check_auto_sharding_option(module, self.as_option)
        if self.ms_option is not None and self.as_option.enable_auto_sharding:
            raise errors.HybridShardingError()
        *_, batch_invars = args[:_ARGUMENTS_BEFORE_AVALS]
        sizes = _batch_sizes(batch_invars, args[_ARGUMENTS_BEFORE_AVALS:], self.num_micro_batches)
        with known_batch_sizes(sizes):
            return compile_original(self, *args)

    replace_in_class(module.ShardParallel, compile_executable)


def _batch_sizes(batch_invars: Sequence[bool], avals: Sequence[Any], num_micro_batches: int | None) -> set[int]:
    """What the first dims of the batch's arrays have in one micro-batch; an invalid number of them is refused later."""
    parts = num_micro_batches if isinstance(num_micro_batches, int) and num_micro_batches > 0 else 1
    return {
        aval.shape[0] // parts for aval, is_batch in zip(avals, batch_invars, strict=True) if is_batch and aval.shape
    }


def _check_logical_mesh(mesh: Any) -> None:
    check_mesh_shape(mesh.shape, mesh.physical_mesh.num_devices)
    check_mesh_costs("mesh_alpha", mesh.mesh_alpha)
    check_mesh_costs("mesh_beta", mesh.mesh_beta)


def _check_auto_sharding_option(module: ModuleType, option: Any) -> None:
    if not isinstance(option, module.AutoShardingOption):
        raise errors.MethodOptionError.auto_sharding_option(option)
    if option.force_batch_dim_to_mesh_dim not in (None, -1, 0, 1):
        raise errors.MethodOptionError.batch_axis(option.force_batch_dim_to_mesh_dim)


def _check_create_state_parallel(module: ModuleType) -> None:
    def __init__(self: Any, train_step: Any, other_args: Any) -> None:
        if not _is_parallelized(train_step):
            raise errors.MethodOptionError.not_parallelized("CreateStateParallel: train_step", train_step)
        self.train_step = train_step
        self.other_args = other_args

    replace_in_class(module.CreateStateParallel, __init__)


def _check_follow_parallel(module: ModuleType) -> None:
    init_original = module.FollowParallel.__init__

    def __init__(
        self: Any,
        src_func: Any,
        num_micro_batches: int | None = None,
        get_input_placement_specs: Callable[[], Any] | None = None,
        pipeline_schedule: str = "inference",
        layer_option: str = "follow",
    ) -> None:
        if not _is_parallelized(src_func):
            raise errors.MethodOptionError.not_parallelized("FollowParallel: src_func", src_func)
        self.follows_train_step = get_input_placement_specs is None
        if get_input_placement_specs is None:
            get_input_placement_specs = _train_step_placements(src_func)
        init_original(self, src_func, num_micro_batches, get_input_placement_specs, pipeline_schedule, layer_option)

    def compile_executable(self: Any, *args: Any) -> Any:
        """As alpa's own, which knows only of (state.params, batch): a function of (state, batch) follows, too.

        Raises:
            errors.FollowError: the function to be followed has not been compiled, or has other arguments.
        """
        before, avals = args[:_ARGUMENTS_BEFORE_AVALS], args[_ARGUMENTS_BEFORE_AVALS:]
        if self.src_func.get_last_executable() is None:
            raise errors.FollowError.not_compiled(_name(self.src_func))
        if self.follows_train_step:
            followed = self.src_func.get_last_executable().get_input_placement_specs()
            choices = [jax.tree.leaves(self.get_input_placement_specs()), jax.tree.leaves(followed)]
        else:
            # A None is an array that may lie anywhere.
            choices = [jax.tree.leaves(self.get_input_placement_specs(), is_leaf=lambda leaf: leaf is None)]
        fitting = [placements for placements in choices if _do_fit(placements, avals)]
        if not fitting:
            numbers = [len(placements) for placements in choices]
            raise errors.FollowError.other_arguments(_name(self.src_func), numbers, len(avals))
        return module.compile_follow_parallel_executable(
            *before,
            self.src_func,
            self.num_micro_batches,
            fitting[0],
            self.pipeline_schedule,
            self.layer_option,
            *avals,
        )

    replace_in_class(module.FollowParallel, __init__, compile_executable)


def _is_parallelized(value: Any) -> bool:
    from alpa.api import ParallelizedFunc

    return isinstance(value, ParallelizedFunc)


def _name(function: Any) -> str:
    return getattr(function.fun, "__name__", repr(function.fun))


def _do_fit(placements: Sequence[Any], avals: Sequence[Any]) -> bool:
    """Whether there is a placement for each array, and of an array of as many dims, if of any."""
    return len(placements) == len(avals) and all(
        placement is None or len(placement.aval.shape) == len(aval.shape)
        for placement, aval in zip(placements, avals, strict=True)
    )


def _train_step_placements(src_func: Any) -> Callable[[], tuple[Any, Any]]:
    """A function that gives the placements of the parameters and the batch of `src_func(state, batch)`."""

    def get_input_placement_specs() -> tuple[Any, Any]:
        placements = src_func.get_last_executable().get_input_placement_specs()
        try:
            state, batch = placements
            return state.params, batch
        except (ValueError, AttributeError) as error:
            raise errors.FollowError.not_a_train_step(_name(src_func), str(error)) from error

    return get_input_placement_specs
