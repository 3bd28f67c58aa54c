"""The arguments and results of a planned function with their shardings, as a plan keeps them.

Nothing here imports jax.
"""

from dataclasses import dataclass, field

from alpa_cfp import codec

Dims = tuple[tuple[str, ...], ...]
Asked = tuple[tuple[str, ...] | None, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """One argument or result with its sharding.

    Attributes:
        path: Its path in the pytree: "args[0].params['w']", "kwargs['rate']", "result[1]".
        shape: Its shape.
        dtype: The name of its dtype.
        dims: Its sharding: for each dim the mesh axes that split it, major to minor.
        donated: Whether a result may take its buffer.
        asked: What the user has asked of its sharding: for each dim the axes, None where it is free; empty for nothing.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    dims: Dims
    donated: bool = False
    asked: Asked = field(default=(), metadata=codec.OMIT_DEFAULT)


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A part of the forward pass that the backward pass computes again.

    Attributes:
        unit: Its number among the units of the program (`analysis.recomputation`).
        blocks: The blocks whose forward contractions are in it.
        keeps_products: Whether the results of contractions are kept, and only all else is computed again.
        freed_bytes: The bytes that are not kept for it, over all devices, before they are split.
    """

    unit: int
    blocks: tuple[int, ...]
    keeps_products: bool
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """The parts in which the samples of a step go through it, one after the other.

    Attributes:
        count: Their number.
        batch_argnums: The positions of the arguments with samples along their first dims.
    """

    count: int
    batch_argnums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments and results of a planned function on its mesh.

    Attributes:
        axis_names: The names of the mesh's axes.
        axis_types: How jax treats each: "Auto", "Explicit" or "Manual".
        devices: The ids of the mesh's devices, in its order; empty for a mesh without devices.
        inputs: The leaves of `(args, kwargs)`.
        outputs: The leaves of the result.
        keeps_loops: Whether the program that is planned has the loops of the function, none of them unrolled.
        recomputed: The parts of the forward pass that the backward pass computes again.
        micro_batches: The parts in which samples go through the function; None for all at once.
    """

    axis_names: tuple[str, ...]
    axis_types: tuple[str, ...]
    devices: tuple[int, ...]
    inputs: tuple[Placed, ...]
    outputs: tuple[Placed, ...]
    keeps_loops: bool = field(default=False, metadata=codec.OMIT_DEFAULT)
    recomputed: tuple[Recomputed, ...] = field(default=(), metadata=codec.OMIT_DEFAULT)
    micro_batches: MicroBatches | None = field(default=None, metadata=codec.OMIT_DEFAULT)
