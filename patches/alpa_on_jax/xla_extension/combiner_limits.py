"""How large combined collectives may be: what alpa says of it in the pass context of auto-sharding."""

from dataclasses import dataclass

from alpa_on_jax.xla_extension.pass_context import get_option

_UNLIMITED_BYTES = 1 << 60  # what alpa sets where it sets no limit
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

    all_gather_bytes: int = _UNLIMITED_BYTES
    all_reduce_bytes: int = _UNLIMITED_BYTES
    scattered_bytes: int = SCATTERED_TOGETHER_BYTES


def limits_of_pass_context() -> CombinerLimits:
    """The limits that alpa has set for what it compiles; none where it has set none."""
    return CombinerLimits(
        int(get_option("combiner::all_gather_threshold", _UNLIMITED_BYTES)),
        int(get_option("combiner::all_reduce_threshold", _UNLIMITED_BYTES)),
        SCATTERED_TOGETHER_BYTES,
    )
