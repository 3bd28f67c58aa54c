"""Parallel methods and their options that do not fit: each other, the mesh, or another function."""

import math
from collections.abc import Sequence
from typing import Any

from alpa_on_jax.errors.base import AlpaOnJaxError


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


class StageOptionError(AlpaOnJaxError, ValueError):
    """Stages cannot be chosen in this way."""

    @classmethod
    def here(cls) -> "StageOptionError":
        return cls(
            "PipeshardParallel: AutoStageOption times stages on meshes of a Ray cluster, and these are to run in this "
            'process. Call alpa.init(cluster="ray", ...) before, or choose the stages: '
            "UniformStageOption(num_stages=2) or ManualStageOption(...)"
        )

    @classmethod
    def meshes_made(cls) -> "StageOptionError":
        return cls(
            "PipeshardParallel: AutoStageOption cuts the cluster into meshes, and this has been done already for a "
            "function that was parallelized before. Call alpa.shutdown() and alpa.init(...) in between, or choose "
            "the stages: UniformStageOption(num_stages=2) or ManualStageOption(...)"
        )

    @classmethod
    def uniform(cls, stages: int, layers: int) -> "StageOptionError":
        return cls(
            f"UniformStageOption(num_stages={stages}) without a shape makes a stage of each layer, of which there are "
            f"{layers}. Give as many layers, AutoLayerOption(layer_num={stages}), or the devices of each stage: "
            "submesh_physical_shape=(1, 2), submesh_logical_shape=(1, 2)"
        )

    @classmethod
    def shapes(cls, shapes: Any) -> "StageOptionError":
        return cls(
            f"AutoStageOption: manually_specified_submeshes={shapes!r} is no list of submeshes. Give, for "
            'submesh_physical_shape_space="manual", hosts and devices of each: ((1, 1), (1, 2), (2, 2))'
        )

    @classmethod
    def shape(cls, shape: tuple[int, int], hosts: int, devices: int) -> "StageOptionError":
        return cls(
            f"AutoStageOption: a submesh of {shape[0]} x {shape[1]} devices cannot be cut out of a cluster of {hosts} "
            f"hosts with {devices} devices each: it has some devices of one host, or all devices of several"
        )

    @classmethod
    def no_power_of_two(cls, devices: int) -> "StageOptionError":
        return cls(
            f"AutoStageOption halves the devices of a host, of which there are {devices}. Use a power of two: "
            "alpa.init(..., num_devices_per_node=...)"
        )

    @classmethod
    def unreadable_cached(cls, path: str, error: Exception) -> "StageOptionError":
        return cls(
            f"AutoStageOption: cached_profile_result={path!r} cannot be read as results of stages: {error}. Alpa "
            "writes them, as profile-results-<time>.npy, into the folder in which a program runs"
        )

    @classmethod
    def other_cached(cls, path: str | None, stage: str) -> "StageOptionError":
        return cls(
            f"AutoStageOption: cached_profile_result={path!r} has results of another model, or of other layers, than "
            f"this one: {stage} does not fit. Leave the option out to measure anew"
        )


class StagePlanError(AlpaOnJaxError, RuntimeError):
    """A planner has no plan for a candidate stage of a pipeline; alpa goes on with the others."""


class NoStagesError(AlpaOnJaxError, RuntimeError):
    """There is no way to put the layers of a model on the devices in stages."""

    SHAPES = (
        "stages on these submeshes cannot come to all of the devices, each of which must be used: give other submeshes "
        "(submesh_physical_shape_space), or cut the model into more layers"
    )
    NO_CANDIDATES = "too few of the candidate stages could be planned; each that could not has a warning"
    IN_FLIGHT = (
        "each stage fits into memory alone, but not together with the micro-batches that the stages after it have at "
        "work: use larger submeshes, smaller micro-batches, or AutoLayerOption(remat_mode=...)"
    )

    @classmethod
    def of(
        cls, num_layers: int, num_devices: int, shapes: Sequence[tuple[int, int]], reasons: Sequence[str]
    ) -> "NoStagesError":
        submeshes = ", ".join(f"{hosts} x {devices}" for hosts, devices in shapes)
        return cls(
            f"PipeshardParallel: AutoStageOption finds no stages for {num_layers} layers on {num_devices} devices, "
            f"with submeshes of {submeshes}. {'. '.join(reasons)}"
        )

    @classmethod
    def lost(cls, count: int, name: str, reason: str) -> str:
        return (
            f"{count} candidate stages could not be compiled or timed, and each has a warning; the first was {name}: "
            f"{reason}"
        )

    @classmethod
    def memory(cls, count: int, name: str, needed: int, available: int) -> str:
        return (
            f"{count} candidate stages do not fit into memory: the smallest, {name}, needs {needed / 2**20:,.1f} MiB "
            f"of the {available / 2**20:,.1f} MiB that a device has. Use larger submeshes, smaller micro-batches, or "
            "AutoLayerOption(remat_mode=...)"
        )

    @classmethod
    def imbalance(cls, tolerance: float) -> str:
        return f"stage_imbalance_tolerance={tolerance:g} leaves candidates out: give a larger one"


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

    @classmethod
    def other_arguments(cls, source: str, numbers: Sequence[int], wanted: int) -> "FollowError":
        found = " or ".join(str(number) for number in numbers)
        return cls(
            f"FollowParallel: the placements of {source}'s arguments, of {found} arrays, do not fit the {wanted} "
            "arrays of the function that follows. By default its arguments are (state.params, batch) or (state, batch) "
            "with the same arrays in the same order; for others give a get_input_placement_specs that returns a "
            "placement, or None, for each array"
        )


class MeshShapeError(AlpaOnJaxError, ValueError):
    """A logical mesh, or a set of devices, that the devices at hand cannot form."""

    @classmethod
    def of_shape(cls, shape: Sequence[int], num_devices: int) -> "MeshShapeError":
        return cls(
            f"a logical mesh of shape {tuple(shape)} needs {math.prod(shape)} devices, but the physical mesh has "
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
