"""Size limits of combined collectives."""

from dataclasses import dataclass
from typing import Self

UNLIMITED_BYTES = 1 << 60  # what alpa sets where it sets no limit
# To copy more than so much takes longer than a communication of its own.
SCATTERED_TOGETHER_BYTES = 1 << 20
# What XLA's own combiners put together on GPUs (openxla/xla, `xla/service/collective_utils.h`).
_SUMMED_BYTES = 30 << 20
# By a GPT of 1.3 billion parameters, compiled for 8 H100: ZeRO-2 is modelled 3% slower with 30 MB, ZeRO-3 without any.
_GATHERED_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class CombinerLimits:
    """Up to which sizes collectives are combined.

    Attributes:
        all_gather_bytes, all_reduce_bytes: The most that a combined collective's results may have together, in bytes of
            one device.
        scattered_bytes: The largest sum that is scattered together with others, for which it has to be copied. Alpa's
            compiler scattered several arrays without copying them, and so combined all. The limit is the same for all
            planners, so that a comparison of plans compares nothing else.
    """

    all_gather_bytes: int = UNLIMITED_BYTES
    all_reduce_bytes: int = UNLIMITED_BYTES
    scattered_bytes: int = SCATTERED_TOGETHER_BYTES

    @classmethod
    def on(cls, platform: str) -> Self:
        """The limits for devices of a platform ("cpu", "gpu", "tpu") of a program that names none.

        On CPUs a collective keeps all devices waiting, so that fewer are better. Elsewhere it runs beside what
        computes: gradients that all wait for the last of them would run beside nothing. Weights may be gathered for a
        few layers together.
        """
        return cls() if platform == "cpu" else cls(_GATHERED_BYTES, _SUMMED_BYTES)
