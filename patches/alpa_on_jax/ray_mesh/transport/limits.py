"""How long a rank waits for the others, and how much it holds of what they sent."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one rank.

    Attributes:
        open_s: Until all ranks are connected.
        wait_s: Of `recv` for its array, and of `send` and of an array on its way without a byte being taken.
        buffer_bytes: What a rank holds of the arrays of one other rank that it was sent before it asked for them. A
            larger array is held if it is the only one. A sender waits while this is full.
    """

    open_s: float = 30.0
    wait_s: float = 120.0
    buffer_bytes: int = 1 << 30
