"""Checks before stages are chosen by their times, which takes minutes: options, submeshes, free devices.

Takes an `AutoStageOption` and the mesh that stages are for; gives the value in which their construction is kept, or
ends with what is wrong. Invariant: nothing has been started by then.
"""

import time
from collections.abc import Sequence
from typing import Any

from alpa_on_jax import data_pickles, errors
from alpa_on_jax.alpa.pipeline_parallel.stage_run import StageRun

_LOOK_EVERY_S = 0.2


def checked(mesh: Any, option: Any, *, is_cluster: bool = True) -> StageRun:
    """A construction that may begin.

    Args:
        mesh: Alpa's virtual mesh of the cluster.
        option: The `AutoStageOption`.
        is_cluster: Whether the devices are those of a cluster; otherwise they are this process' own.

    Raises:
        errors.NeedsForkError, errors.StageOptionError, errors.ClusterResourcesError: it may not.
    """
    if option.use_hlo_cost_model:
        raise errors.NeedsForkError.hlo_cost_model()
    if mesh.launched_physical_mesh_group is not None:
        raise errors.StageOptionError.meshes_made()
    shapes = _shapes(mesh, option)
    if option.cached_profile_result is not None:
        _check_readable(option.cached_profile_result)
    if is_cluster:
        _wait_until_free(mesh)
    return StageRun(mesh.num_devices, shapes, option.stage_imbalance_tolerance, option.cached_profile_result)


def _shapes(mesh: Any, option: Any) -> Sequence[tuple[int, int]]:
    """The shapes of submeshes that alpa goes through."""
    from alpa.global_env import global_config
    from alpa.pipeline_parallel import stage_construction

    hosts, devices = mesh.num_hosts, mesh.num_devices_per_host
    space, given = option.submesh_physical_shape_space, option.manually_specified_submeshes
    shapes: Any = global_config.overwrite_submesh_choices
    if shapes is None:
        if devices & (devices - 1):
            raise errors.StageOptionError.no_power_of_two(devices)
        is_given = space == "manual"
        shapes = given if is_given else stage_construction.get_submesh_choices(hosts, devices, space, given)
    try:
        shapes = [(int(rows), int(columns)) for rows, columns in shapes]
    except (TypeError, ValueError):
        shapes = []
    if not shapes:
        raise errors.StageOptionError.shapes(given)
    for shape in shapes:
        is_part = shape[0] == 1 and 1 <= shape[1] <= devices
        if not is_part and not (1 <= shape[0] <= hosts and shape[1] == devices):
            raise errors.StageOptionError.shape(shape, hosts, devices)
    return shapes


def _check_readable(path: str) -> None:
    try:
        with open(path, "rb") as file:
            results = data_pickles.load(file)
        if not isinstance(results, dict):
            raise ValueError(f"it has a {type(results).__name__} and no dictionary")
    except Exception as error:
        raise errors.StageOptionError.unreadable_cached(path, error) from error


def _wait_until_free(mesh: Any) -> None:
    """Wait for devices that meshes which have just ended give back; none else does by itself."""
    from alpa.device_mesh import get_global_cluster, get_global_physical_mesh
    from alpa.global_env import global_config
    from alpa.util import get_num_available_gpus

    cluster: Any = get_global_cluster()
    config: Any = global_config
    wanted = cluster.num_devices if config.profile_with_whole_ray_cluster else mesh.num_devices
    limit_s = 0.0 if get_global_physical_mesh() is not None else config.host_limits.reserve_s
    end = time.monotonic() + limit_s
    while (free := get_num_available_gpus(cluster.placement_group)) < wanted:
        if time.monotonic() >= end:
            raise errors.ClusterResourcesError.not_free(wanted, free, limit_s)
        time.sleep(_LOOK_EVERY_S)
