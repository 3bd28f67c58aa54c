"""Which parts of a program's forward pass are computed again in its backward pass, instead of being kept for it.

A plan says it (`plan.signature`), `apply.recompute` does it. Nothing here imports jax.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Recomputation:
    """What is computed again.

    Attributes:
        parts: The numbers of the parts of the forward pass (`analysis.forward_parts`).
        keeps_products: Whether the results of products are kept all the same, as by JAX's policy `dots_saveable`.
    """

    parts: tuple[int, ...]
    keeps_products: bool
