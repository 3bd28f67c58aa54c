"""What every transport does: arrays from one rank to another, by tag.

A group is made in two steps, because an address is known only once it is listened on: each process makes a `Listener`,
somebody tells every process the addresses of all of them (and a token), and each process then calls `open`, which
returns when it is connected to all others. A rank is whatever the caller makes it: a process, or one of its GPUs.

Invariants: arrays with different tags may be received in any order; those with the same tag, from one rank to another,
are received in the order in which they were sent. Every wait ends after a limit.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import DTypeLike


@dataclass(frozen=True, slots=True)
class Address:
    """Where a rank listens.

    Attributes:
        ip: Its IP address, and the only one that it listens on.
        port: Its TCP port.
        local: The name of its Unix socket, which processes of the same machine try first; empty if it has none.
        nccl: Whether it stands for a GPU that NCCL can be used on.
    """

    ip: str
    port: int
    local: str = ""
    nccl: bool = False

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long is waited, and how much is held.

    Attributes:
        open_s: Until all ranks are connected.
        wait_s: Of `recv` for its array, and of `send` and of an array on its way without a byte being taken.
        buffer_bytes: What a rank holds of the arrays of one other rank that it was sent before it asked for them. A
            larger array is held if it is the only one. A sender waits while this is full.
    """

    open_s: float = 30.0
    wait_s: float = 120.0
    buffer_bytes: int = 1 << 30


class Endpoint(Protocol):
    """One rank's end of a group."""

    @property
    def rank(self) -> int:
        """This rank."""
        ...

    @property
    def world(self) -> int:
        """The number of ranks."""
        ...

    def send(self, tag: str, array: Any, to: int) -> None:
        """Send an array (numpy or JAX); it may be changed or deleted once this returns.

        Does not wait for the matching `recv` as long as the other rank's buffer has room: both may send first.

        Raises:
            PeerLostError: The other rank is gone.
            TransportTimeoutError: It took nothing for `wait_s`.
            ArrayTypeError: The array has a dtype that cannot be sent.
        """
        ...

    def recv(
        self, tag: str, shape: Sequence[int], dtype: DTypeLike, source: int, *, into: np.ndarray | None = None
    ) -> Any:
        """Receive the array that rank `source` sends with this tag.

        Args:
            tag: As the sender's.
            shape: The shape that it must have.
            dtype: The dtype that it must have.
            source: The sending rank.
            into: An array to receive into and to return. It must not be touched meanwhile, and after an error its
                content is undefined.

        Returns:
            `into`, or a new array that is the caller's alone, aligned so that JAX on CPU can take it without a copy.

        Raises:
            PeerLostError: The other rank is gone and has not sent it. What it sent before is still received.
            TransportTimeoutError: It did not come within `wait_s`.
            ArrayMismatchError: It has another shape or dtype. It is dropped.
        """
        ...

    def close(self) -> None:
        """Close the connections; waits of other threads and of other ranks end with an error. Twice is fine."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Listener(Protocol):
    """The address of a rank that is not yet connected."""

    @property
    def address(self) -> Address:
        """To be told to all ranks."""
        ...

    def open(self, rank: int, addresses: Sequence[Address], token: bytes) -> Endpoint:
        """Connect to all ranks and stop listening.

        Args:
            rank: This rank; `addresses[rank]` is this listener's.
            addresses: Of all ranks, in order.
            token: The group's secret, of 16 bytes or more: see `new_token`.

        Raises:
            RankError: The rank is not among the addresses, or is another's.
            TokenError: What answers at an address does not know the token.
            TransportTimeoutError: Not all ranks were there within `open_s`.
        """
        ...

    def close(self) -> None:
        """Stop listening. Twice is fine."""
        ...


def new_token() -> bytes:
    """A secret for a new group."""
    return secrets.token_bytes(32)
