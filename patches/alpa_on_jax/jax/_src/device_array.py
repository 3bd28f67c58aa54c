"""The array types of JAX 0.3, told apart by how many devices hold the array, where JAX now has only `jax.Array`.

Alpa deletes a donated `DeviceArray` as soon as it has copied it to the mesh, and hands a `ShardedDeviceArray` on as it
is: the first must never match an array that is on several devices, or its shards are deleted while they are in use.
"""

from typing import Any

import jax
from jax.core import Tracer

__all__ = ["DeviceArray", "ShardedDeviceArray", "_CppDeviceArray", "_DeviceArray"]


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array) and not isinstance(value, Tracer)


class _OnOneDevice(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return _is_array(instance) and len(instance.sharding.device_set) == 1


class _OnSeveralDevices(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return _is_array(instance) and len(instance.sharding.device_set) > 1


class DeviceArray(metaclass=_OnOneDevice):
    """Any concrete `jax.Array` on one device."""


class ShardedDeviceArray(metaclass=_OnSeveralDevices):
    """Any concrete `jax.Array` on more than one device."""


_DeviceArray = DeviceArray
_CppDeviceArray = DeviceArray
