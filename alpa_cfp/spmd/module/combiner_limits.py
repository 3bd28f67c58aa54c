"""How large combined collectives may be."""

from dataclasses import dataclass

UNLIMITED_BYTES = 1 << 60  # what alpa sets where it sets no limit
# To copy more than so much takes longer than a communication of its own.
SCATTERED_TOGETHER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class CombinerLimits:
    """What is combined.

    Attributes:
        all_gather_bytes, all_reduce_bytes: How large a combined collective's results may be together, in bytes of one
            device.
        scattered_bytes: How large a sum may be to be scattered together with others, for which it has to be copied.
            Alpa's compiler scattered several arrays without copying them, and so combined all. The same whoever planned
            a program, so that plans are compared and not what is made of them.
    """

    all_gather_bytes: int = UNLIMITED_BYTES
    all_reduce_bytes: int = UNLIMITED_BYTES
    scattered_bytes: int = SCATTERED_TOGETHER_BYTES
