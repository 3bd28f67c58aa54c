"""One rank's end of a group: arrays to and from every other rank."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike

from alpa_on_jax.ray_mesh.transport import message
from alpa_on_jax.ray_mesh.transport.channel import Channel
from alpa_on_jax.ray_mesh.transport.errors import RankError


class Endpoint:
    """A rank that is connected to all others.

    Args:
        rank: This rank.
        channels: The connection to each other rank.
    """

    def __init__(self, rank: int, channels: Mapping[int, Channel]):
        self.rank, self._channels = rank, dict(channels)

    @property
    def paths(self) -> dict[int, str]:
        """How each other rank is reached: "unix" or "tcp"."""
        return {peer: channel.path for peer, channel in self._channels.items()}

    def send(self, tag: str, array: Any, to: int) -> None:
        """Send an array (numpy or JAX); it may be changed or deleted once this returns.

        Does not wait for the matching `recv` as long as the other rank's buffer has room: both may send first.

        Raises:
            PeerLostError: The other rank is gone.
            TransportTimeoutError: It took nothing for `wait_s`.
            ArrayTypeError: The array has a dtype that cannot be sent.
        """
        self._channel(to).send(tag, array)

    def recv(self, tag: str, shape: Sequence[int], dtype: DTypeLike, source: int) -> np.ndarray:
        """Receive the array that rank `source` sends with this tag.

        Args:
            tag: As the sender's.
            shape: The shape that it must have.
            dtype: The dtype that it must have.
            source: The sending rank.

        Returns:
            An array that is the caller's alone, aligned so that JAX on CPU can take it without a copy.

        Raises:
            PeerLostError: The other rank is gone and has not sent it. What it sent before is still received.
            TransportTimeoutError: It did not come within `wait_s`.
            ArrayMismatchError: It has another shape or dtype. It is dropped.
        """
        asked = message.header(tag, shape, dtype)
        return self._channel(source).recv(asked, message.native(np.dtype(dtype)))

    def close(self) -> None:
        """Close the connections; waits of other threads and of other ranks end with an error. Twice is fine."""
        for channel in self._channels.values():
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _channel(self, peer: int) -> Channel:
        if peer not in self._channels:
            others = sorted(self._channels)
            raise RankError(f"rank {self.rank} cannot send to or receive from {peer}: the others are {others}")
        return self._channels[peer]
