"""One host's parts of an array on a mesh of several hosts: the value in alpa's `uuid -> [each device's part]`.

Takes the array as a program gave it. Taking it apart and putting it together again costs more than a small step does,
and programs want it whole: so it is taken apart on first use of a part. Invariant: it is a sequence of
single-device arrays, as many as the host has devices, in their order.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax

from alpa_cfp.spmd.compile import backend


class HostArray(Sequence[jax.Array]):
    """This host's parts of an array.

    Args:
        whole: The array, on the devices of all hosts.
        num_devices: The number of them that are this host's.

    Attributes:
        whole: The array.
    """

    def __init__(self, whole: jax.Array, num_devices: int):
        self.whole, self._num_devices = whole, num_devices
        self._parts: list[jax.Array] | None = None

    def _apart(self) -> list[jax.Array]:
        if self._parts is None:
            self._parts = backend.parts_of_array(self.whole)
        return self._parts

    def __len__(self) -> int:
        return self._num_devices

    def __getitem__(self, index: Any) -> Any:
        return self._apart()[index]

    def __iter__(self) -> Iterator[jax.Array]:
        return iter(self._apart())

    def block_until_ready(self) -> None:
        """Wait until all parts are computed."""
        self.whole.block_until_ready()


def block_until_ready(parts: Sequence[jax.Array]) -> None:
    """Wait until a host's parts of an array are computed, whether or not they are a `HostArray`."""
    if isinstance(parts, HostArray):
        parts.block_until_ready()
    else:
        jax.block_until_ready(parts)
