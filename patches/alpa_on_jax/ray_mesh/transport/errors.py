"""What can go wrong between two ranks, worded once.

Takes ranks, tags and what was seen, and gives back exceptions. None of them is a `RuntimeError`: a program that answers
those by ending its process (alpa's workers do) would take the reason with it.
"""

from alpa_cfp.spmd.errors import TransportError


class RankError(TransportError, ValueError):
    """A rank or a list of addresses that the group does not have."""


class ArrayMismatchError(TransportError, ValueError):
    """What arrived is not what was asked for."""

    def __init__(self, tag: str, source: int, sent: str, asked: str) -> None:
        super().__init__(
            f"tag {tag!r} from rank {source}: {sent} was sent and {asked} was asked for. The two sides run different "
            "programs, or use one tag for two arrays"
        )


class ArrayTypeError(TransportError, TypeError):
    """An array whose bytes mean nothing in another process."""

    def __init__(self, dtype: str) -> None:
        super().__init__(f"arrays of dtype {dtype} cannot be sent: only booleans, integers, floats and complex numbers")


class TokenError(TransportError, PermissionError):
    """The other side does not know the group's token."""

    def __init__(self, peer: int, address: str) -> None:
        super().__init__(
            f"what answers at {address} for rank {peer} does not know the token of this group: another group or "
            "another program has that port. Give all ranks of a group the same token and the addresses of its listeners"
        )


class PeerLostError(TransportError, ConnectionError):
    """The other process is gone, or has closed its endpoint."""

    def __init__(self, peer: int, doing: str, why: str) -> None:
        super().__init__(f"{doing} rank {peer}: {why}. The group cannot be used any more: make a new one")


class TransportTimeoutError(TransportError, TimeoutError):
    """Nothing came, or nothing was taken, for as long as was allowed."""
