"""Every error that a user of alpa on stock JAX can cause, worded once: what failed, the value, why, what to do.

Takes the values that were wrong and gives back exceptions; nothing here looks at the system. Each class also derives
from the built-in exception that Python code would expect in its place, so that `except ImportError` or
`except TypeError` around a call into alpa keep working.
"""

from collections.abc import Sequence
from typing import Any


class AlpaOnJaxError(Exception):
    """Base of all errors here, to catch them together."""


class AlpaMissingError(AlpaOnJaxError, ModuleNotFoundError):
    """Alpa itself is not installed."""

    def __init__(self, wanted: str) -> None:
        super().__init__(
            "No module named 'alpa'. This environment can run alpa on stock JAX, but alpa is not installed. Install it "
            f"without the versions that it pins: pip install --no-deps alpa=={wanted}",
            name="alpa",
        )


class AlpaVersionError(AlpaOnJaxError, ImportError):
    """Another version of alpa is installed."""

    def __init__(self, found: str, wanted: str) -> None:
        super().__init__(
            f"alpa {found} is installed, but only alpa {wanted} runs on stock JAX: its functions are replaced by name. "
            f"Install that one: pip install --no-deps alpa=={wanted}",
            name="alpa",
        )


class AlpaShadowedError(AlpaOnJaxError, ImportError):
    """The alpa that Python would import is not the installed one."""

    def __init__(self, found: str, installed: str) -> None:
        super().__init__(
            f"`import alpa` finds {found} before the installed {installed}. That usually happens when Python runs in a "
            "folder that has another alpa in it. Run it from elsewhere, or take that folder off sys.path",
            name="alpa",
            path=found,
        )


class JaxVersionError(AlpaOnJaxError, ImportError):
    """The installed jax and jaxlib are not a tested pair."""

    def __init__(self, found: dict[str, str | None], tested: Sequence[str], variable: str) -> None:
        have = " and ".join(f"{name} {version or 'not installed'}" for name, version in found.items())
        super().__init__(
            f"alpa on stock JAX is tested with jax and jaxlib {' and '.join(tested)} (both of the same version), but "
            f"here are {have}. It uses JAX internals that change between versions. Install a tested version, for "
            f"example: pip install jax=={tested[0]} jaxlib=={tested[0]}; or set {variable}=1 to try this one anyway",
            name="jax",
        )


class RayMissingError(AlpaOnJaxError, ModuleNotFoundError):
    """Ray is needed now, and not installed."""

    def __init__(self, wanted: str) -> None:
        super().__init__(
            f"No module named {wanted.partition('.')[0]!r}: alpa needs {wanted} here, and Ray is not installed. Only "
            "meshes of several processes need it. Install it (pip install ray), or stay in this process: "
            'alpa.init(cluster="local")',
            name=wanted.partition(".")[0],
        )


class RayNameError(AlpaOnJaxError, ImportError):
    """Alpa wants a name of Ray that the installed Ray does not have."""

    def __init__(self, module: str, name: str) -> None:
        super().__init__(
            f"alpa needs {module}.{name}, which the installed Ray does not have: it was removed since Ray 2.1, for "
            "which alpa was written",
            name=module,
        )


class NotCallableError(AlpaOnJaxError, TypeError):
    """`alpa.parallelize` was given something that is no function."""

    def __init__(self, value: Any) -> None:
        super().__init__(
            f"alpa.parallelize expects a function, but got {value!r} of type {type(value).__name__}. Give it the "
            "function itself, not the result of calling it"
        )


class NotAnArrayError(AlpaOnJaxError, TypeError):
    """A dynamic argument of a parallelized function has a leaf that is no array."""

    def __init__(self, function: str, leaf: str, value: Any) -> None:
        super().__init__(
            f"{function}: {leaf} is {value!r} of type {type(value).__name__}, which is no array. Only arrays and "
            "numbers can be distributed; give anything else as a static argument (alpa.parallelize(..., "
            "static_argnums=...)) or keep it out of the arguments"
        )


class NotJittableError(AlpaOnJaxError, TypeError):
    """The function cannot be traced, so it cannot be compiled."""

    def __init__(self, function: str, reason: str) -> None:
        super().__init__(
            f"{function} cannot be compiled, because tracing it failed: {reason}. A function for alpa.parallelize must "
            "be one that jax.jit accepts: no Python control flow on the values of arrays, and arrays as results"
        )


class ArgnumsError(AlpaOnJaxError, ValueError):
    """static_argnums, donate_argnums or batch_argnums do not fit the arguments."""

    def __init__(self, function: str, option: str, value: Any, reason: str) -> None:
        super().__init__(f"{function}: {option}={value!r} {reason}")


class HostCallbackError(AlpaOnJaxError, NotImplementedError):
    """A parallelized function calls back into Python while it runs."""

    def __init__(self, program: str, callbacks: Sequence[str]) -> None:
        super().__init__(
            f"{program}: a parallelized function cannot call back into Python while it runs, but it does so by "
            f"{', '.join(callbacks)}: its program runs on all devices of a mesh, in other processes too, without the "
            "Python functions that it would call. Return the values and look at them outside (in place of "
            "jax.debug.print and jax.debug.callback), or compute them before the call or with JAX's own operations (in "
            "place of jax.pure_callback and io_callback)"
        )


class MicroBatchError(AlpaOnJaxError, ValueError):
    """The batch cannot be split in micro-batches."""


class ShardingOptionError(AlpaOnJaxError, ValueError):
    """A manual sharding does not fit the mesh or the array."""


class IndivisibleShardingError(ShardingOptionError):
    """A sharding that was set on an input or output does not divide its array."""

    def __init__(self, kind: str, index: int, shape: Sequence[int], mesh_shape: Sequence[int]) -> None:
        super().__init__(
            f"the sharding that was set for {kind} {index} of shape {tuple(shape)} does not divide it on a logical "
            f"mesh of shape {tuple(mesh_shape)}: every dim must be a multiple of the number of devices that split it. "
            "Change the batch size or the array's shape, or split another dim"
        )


class AutoShardingInfeasibleError(AlpaOnJaxError, RuntimeError):
    """Alpa's ILP has no solution, or its solver found none."""

    @classmethod
    def memory(cls, budget_bytes: float) -> "AutoShardingInfeasibleError":
        return cls(
            f"no sharding of this program fits into the memory budget of {budget_bytes / 2**20:,.1f} MiB a device. "
            "Give a larger memory_budget_per_device, use more devices, or make the program smaller (more "
            "micro-batches, rematerialisation)"
        )

    @classmethod
    def no_solution(cls, status: str, seconds: float, limit: float) -> "AutoShardingInfeasibleError":
        return cls(
            f"the ILP solver stopped after {seconds:.0f} s without a solution (PuLP's status: {status!r}; its "
            f"time limit is {limit:.0f} s). Give it a smaller problem: fewer layers in a stage, or options that leave "
            "it less choice (force_data_parallel, force_batch_dim_to_mesh_dim)"
        )

    @classmethod
    def aliases(cls, shape: Sequence[int]) -> "AutoShardingInfeasibleError":
        return cls(
            f"a donated argument of shape {tuple(shape)} and the result that takes its buffer cannot lie in the same "
            "way on the devices, because no strategy is common to both. Do not donate this argument (donate_argnums)"
        )

    @classmethod
    def conflicting_aliases(cls) -> "AutoShardingInfeasibleError":
        return cls(
            "there is no sharding in which every donated argument lies as the result that takes its buffer. Donate "
            "fewer arguments (donate_argnums)"
        )


class SolverMissingError(AlpaOnJaxError, RuntimeError):
    """There is no ILP solver."""

    def __init__(self) -> None:
        super().__init__(
            "alpa's auto-sharding needs the CBC solver that comes with PuLP before version 4, and none was found. "
            "Install it with: pip install 'pulp<4'"
        )


class BatchDimError(AlpaOnJaxError, ValueError):
    """A batch dim that must be split along an axis and cannot be."""

    @classmethod
    def indivisible(cls, shape: Sequence[int], dim: int, axis: int, devices: int) -> "BatchDimError":
        return cls(
            f"an array of shape {tuple(shape)} has its batch in dim {dim}, which must be split over the {devices} "
            f"devices along axis {axis} of the logical mesh and is not divided by them. Change the batch size (with "
            "micro-batches it is that of one micro-batch), or set force_batch_dim_to_mesh_dim=-1 in the "
            "AutoShardingOption"
        )

    @classmethod
    def no_strategy(cls, op: str, shape: Sequence[int], dim: int, axis: int) -> "BatchDimError":
        return cls(
            f"no strategy of the op {op} with a result of shape {tuple(shape)} splits its batch dim {dim} along "
            f"axis {axis} of the logical mesh. Set force_batch_dim_to_mesh_dim=-1 in the AutoShardingOption, or use a "
            "1D mesh"
        )


class MeshShapeError(AlpaOnJaxError, ValueError):
    """A logical mesh, or a set of devices, that the devices at hand cannot form."""

    @classmethod
    def of_shape(cls, shape: Sequence[int], num_devices: int) -> "MeshShapeError":
        return cls(
            f"a logical mesh of shape {tuple(shape)} needs {_product(shape)} devices, but the physical mesh has "
            f"{num_devices}. Choose a shape whose product is {num_devices}, or give LocalPhysicalDeviceMesh other "
            "devices"
        )

    @classmethod
    def no_shape(cls, shape: Any) -> "MeshShapeError":
        return cls(
            f"mesh_shape={shape!r} is no shape of a logical mesh, which has two axes of at least one device each: for "
            "example (2, 4), or (1, 8) for a mesh that is used along one axis only"
        )

    @classmethod
    def costs(cls, option: str, value: Any) -> "MeshShapeError":
        return cls(
            f"{option}={value!r} must be two numbers that are not negative, one for each axis of the logical mesh: the "
            "latency (mesh_alpha) or the time for each byte (mesh_beta) of communication along it. For example (1, 0.1)"
        )

    @classmethod
    def repeated(cls, devices: Sequence[Any]) -> "MeshShapeError":
        twice = sorted({str(device) for device in devices if list(devices).count(device) > 1})
        return cls(f"a physical mesh has each device once, but it was given several times: {', '.join(twice)}")

    @classmethod
    def no_devices(cls) -> "MeshShapeError":
        return cls("a physical mesh needs at least one device, but it was given an empty list of devices")


def _product(shape: Sequence[int]) -> int:
    result = 1
    for size in shape:
        result *= int(size)
    return result


class MethodError(AlpaOnJaxError, TypeError):
    """`method` is no way to parallelize."""

    def __init__(self, value: Any) -> None:
        super().__init__(
            f"alpa.parallelize: method={value!r} of type {type(value).__name__} is no ParallelMethod. Give an "
            "instance, for example method=alpa.ShardParallel()"
        )


class MethodOptionError(AlpaOnJaxError, TypeError):
    """An option of a ParallelMethod is of the wrong kind."""

    @classmethod
    def devices(cls, value: Any) -> "MethodOptionError":
        return cls(
            f"ShardParallel: devices={value!r} of type {type(value).__name__} is no mesh. Give a list of JAX devices, "
            "a physical mesh (alpa.LocalPhysicalDeviceMesh(jax.local_devices())), a logical one "
            "(physical_mesh.get_logical_mesh((2, 4))), or None for all devices"
        )

    @classmethod
    def auto_sharding_option(cls, value: Any) -> "MethodOptionError":
        return cls(
            f"auto_sharding_option={value!r} of type {type(value).__name__} is no AutoShardingOption. Give one, for "
            "example AutoShardingOption(force_data_parallel=True)"
        )

    @classmethod
    def batch_axis(cls, value: Any) -> "MethodOptionError":
        return cls(
            f"AutoShardingOption: force_batch_dim_to_mesh_dim={value!r} is no axis of a logical mesh. Give 0 or 1, -1 "
            "for any, or None for alpa's default: 0 on a mesh with two axes of several devices, else any"
        )

    @classmethod
    def not_parallelized(cls, option: str, value: Any) -> "MethodOptionError":
        return cls(
            f"{option}={value!r} of type {type(value).__name__} was not made by alpa.parallelize. The placement of "
            "another function's arguments is what is followed: give that function as alpa.parallelize returned it"
        )


class HybridShardingError(AlpaOnJaxError, NotImplementedError):
    """Manual shardings and the solver were asked for together."""

    def __init__(self) -> None:
        super().__init__(
            "manual_sharding_option was given together with enable_auto_sharding=True, but alpa's solver cannot start "
            "from manual shardings. Set auto_sharding_option=AutoShardingOption(enable_auto_sharding=False), which "
            "propagates them, or leave manual_sharding_option out"
        )


class FollowError(AlpaOnJaxError, RuntimeError):
    """FollowParallel finds no placement that it could follow."""

    @classmethod
    def not_compiled(cls, source: str) -> "FollowError":
        return cls(
            f"FollowParallel: {source} has not been compiled yet, so its arguments have no placement that could be "
            "followed. Call it first, or compile it with its get_executable(*args)"
        )

    @classmethod
    def not_a_train_step(cls, source: str, reason: str) -> "FollowError":
        return cls(
            f"FollowParallel: the placements of {source}'s arguments cannot be taken apart: {reason}. Without "
            "get_input_placement_specs its arguments are expected to be (state, batch), with parameters state.params. "
            "Give a get_input_placement_specs that returns the placements for the following function's arguments"
        )


class GradientMarkerError(AlpaOnJaxError, ValueError):
    """With micro-batches, it cannot be told what is done once a micro-batch and what once a step."""

    @classmethod
    def missing(cls) -> "GradientMarkerError":
        return cls(
            "num_micro_batches was given, but the function calls neither alpa.grad nor alpa.value_and_grad, which mark "
            "the end of what is done for each micro-batch. That usually happens with jax.grad in their place: use "
            "alpa.grad or alpa.value_and_grad, with the same arguments; or leave num_micro_batches out"
        )

    @classmethod
    def several(cls, count: int) -> "GradientMarkerError":
        return cls(
            "with num_micro_batches, one call of alpa.grad or alpa.value_and_grad marks the end of what is done for "
            f"each micro-batch, but the function calls them {count} times. Take all gradients with one call, or leave "
            "num_micro_batches out"
        )

    @classmethod
    def crossed(cls, values: Sequence[str]) -> "GradientMarkerError":
        return cls(
            "with num_micro_batches, what comes before the gradients is done once a micro-batch and what comes after "
            "them once a step, and only the results of alpa.grad or alpa.value_and_grad pass between the "
            f"two. But the part after them uses values of the part before: {'; '.join(values)}. Compute these after "
            "the gradients, or return them from the loss as auxiliary values (has_aux=True)"
        )


class LayerMarkerError(AlpaOnJaxError, ValueError):
    """A function for a pipeline has operations outside of its layers."""

    def __init__(self, operation: str, source: str) -> None:
        super().__init__(
            f"the operation {operation} of {source} is in no pipeline layer, but every operation of the function must "
            "be. That usually happens when the function was not divided into layers: wrap it in "
            "manual_layer_construction, with calls of alpa.mark_pipeline_boundary() between its layers, or in "
            "automatic_layer_construction (both in alpa.pipeline_parallel.layer_construction)"
        )


class ClusterError(AlpaOnJaxError, RuntimeError):
    """alpa.init or alpa.shutdown cannot do what was asked."""


class InternalError(AlpaOnJaxError, RuntimeError):
    """Something that must hold does not: a mistake in this package, and never a wrong result instead."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. This is a mistake in alpa_on_jax, not in your program: please report it")


class ClusterUnavailableError(ClusterError, NotImplementedError):
    """`alpa.init` was asked for a cluster that is not available."""

    def __init__(self, cluster: str) -> None:
        super().__init__(
            f"alpa.init(cluster={cluster!r}): meshes that Ray manages are not available on stock JAX yet. Use all "
            'devices of this process: alpa.init(cluster="local"), or give the method devices=alpa.'
            "LocalPhysicalDeviceMesh(...)"
        )


class PipelineUnavailableError(AlpaOnJaxError, NotImplementedError):
    """`PipeshardParallel` was asked for."""

    def __init__(self) -> None:
        super().__init__(
            "alpa.PipeshardParallel needs meshes that Ray manages, which are not available on stock JAX yet. Use "
            "alpa.ShardParallel, or alpa.parallel_method.LocalPipelineParallel to debug a pipeline on one device"
        )


class HeuristicError(AlpaOnJaxError, ValueError):
    """`force_simple_heuristic` names no rule."""

    def __init__(self, name: Any, known: Sequence[str]) -> None:
        super().__init__(
            f"force_simple_heuristic={name!r} is no rule by which parameters can be split. Give one of "
            f"{', '.join(map(repr, known))}, or '' to let alpa's ILP choose"
        )
