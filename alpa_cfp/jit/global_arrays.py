"""Places the arguments of a planned function on its mesh.

Takes arrays, NumPy arrays and numbers, and the planned shardings; gives arrays with these. On a mesh of several
processes it takes of this process' own values those that `jax.jit` takes, and as there they must be the same in all
processes, which nothing checks: no call communicates that would not do so in one process. Invariant: an array on the
devices of the mesh is moved without a copy by way of the host.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from alpa_cfp.errors import PlanError
from alpa_cfp.spmd.compile.executable import Client
from alpa_cfp.spmd.distributed.host_client import HostClient


def client_of(mesh: Mesh) -> Client:
    """Returns the client of a mesh, of this process alone or of several ones."""
    devices = tuple(mesh.devices.flat)
    return HostClient(devices) if has_several_processes(mesh) else Client(devices)


def has_several_processes(mesh: Mesh) -> bool:
    """Whether a mesh has devices of several processes."""
    return len({device.process_index for device in mesh.devices.flat}) > 1


def placed(
    arrays: Sequence[Any], shardings: Sequence[NamedSharding], paths: Sequence[str], donated: Sequence[bool]
) -> list[jax.Array]:
    """Returns the arrays with other shardings.

    Args:
        arrays: Arrays, NumPy arrays or numbers.
        shardings: The sharding of each.
        paths: The path of each in `(args, kwargs)`, for errors.
        donated: For each whether its buffer may be taken.

    Raises:
        PlanError: a value of this process alone is split over several ones.
    """
    own = [
        i
        for i, (array, sharding) in enumerate(zip(arrays, shardings, strict=True))
        if not sharding.is_fully_addressable and _is_of_this_process(array)
    ]
    results = list(arrays)
    for i in own:
        # As `jax.jit`: an array that is on no device for a reason is taken for the same one in all processes.
        if not (shardings[i].is_fully_replicated or _is_uncommitted(arrays[i])):
            raise PlanError.not_global(paths[i], type(arrays[i]).__name__)
        results[i] = _of_equal_values(np.asarray(arrays[i]), shardings[i])
    if others := sorted(set(range(len(arrays))).difference(own)):
        values, targets, may_take = ([each[i] for i in others] for each in (results, shardings, donated))
        for i, array in zip(others, jax.device_put(values, targets, donate=may_take), strict=True):
            results[i] = array
    return results


def _is_of_this_process(array: Any) -> bool:
    return not isinstance(array, jax.Array) or array.is_fully_addressable


def _is_uncommitted(array: Any) -> bool:
    return isinstance(array, jax.Array) and not array.committed


def _of_equal_values(value: np.ndarray, sharding: NamedSharding) -> jax.Array:
    value = value.astype(jax.dtypes.canonicalize_dtype(value.dtype), copy=False)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])
