"""The seconds of one instruction that computes, on a chip that need not be here.

Takes an instruction of a scheduled program and a chip; gives its `Work`: seconds, and the bytes and operations behind
them. On a TPU they are the compiler's own cycles by the clock, where it says them. Everything else is a roofline: what
moves between chip and memory by the bandwidth, and products by the operations of their element type; the longer of both
counts. Invariants: a roofline's seconds are never below those of the bytes at full bandwidth, nor of the operations at
full peak; what is only another name for bytes that are there takes none.

Products go by tiles, as kernels of GPUs do them: each core makes one tile of the result after the other, so a product
whose tiles do not fill the last wave over the cores, or the tiles at its borders, pays for what it leaves idle ("wave"
and "tile quantization" in NVIDIA's guide to matrix multiplication performance). The kernel is the best of a few tile
sizes, with or without splitting what is summed over.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from alpa_cfp.targets.errors import RateError
from alpa_cfp.targets.hlo_text import MAIN_MEMORY, Computation, Instruction, ScheduledModule
from alpa_cfp.targets.products import Product, products_of
from alpa_cfp.targets.traffic import moved_bytes

# Rows and columns of the tiles that kernels of matrix products have (CUTLASS has these for tensor cores).
_TILES = ((256, 128), (128, 256), (128, 128), (64, 256), (128, 64), (64, 128), (64, 64))
_SPLITS = (1, 2, 4, 8, 16, 32)
# A core reads so much of what is summed over at once.
_STEP = 64
# The memory on a TPU's chip is about 22 times as fast as the one beside it (the book "How to Scale Your Model").
_ON_CHIP = 22.0
# They are names for bytes that are there already, or numbers that a core knows.
_FREE = frozenset(
    {
        *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "add-dependency"),
        *("opt-barrier", "optimization-barrier", "partition-id", "replica-id", "domain"),
    }
)
_FREE_CALLS = frozenset({"ConcatBitcast", "AllocateBuffer", "AssumeGatherIndicesInBound", "Sharding"})
# Where a chip has no rate of its own for a type, that of the next: tensor cores round float32 by default, and what is
# narrower than they know is widened.
_RATES_INSTEAD: Mapping[str, tuple[str, ...]] = {
    "tf32": ("f32", "bf16"),
    "f32": ("tf32", "bf16"),
    "f16": ("bf16",),
    "bf16": ("f16",),
    "f64": ("f32",),
    "c64": ("f32",),
    "c128": ("f64", "f32"),
}
_NARROW = ("f8", "s8", "bf16", "f16")


class Chip(Protocol):
    """What is known of a chip.

    Attributes:
        kind: `gpu` or `tpu`.
        flops_per_s: Peak operations by element type, dense; `tf32` for float32 products as tensor cores round them.
        memory_bytes_per_s: Peak bandwidth of its memory.
        cores: What computes a tile at a time: streaming multiprocessors, tensor cores of a TPU.
        clock_hz: By which a compiler's cycles are counted.
    """

    @property
    def kind(self) -> str: ...

    @property
    def flops_per_s(self) -> Mapping[str, float]: ...

    @property
    def memory_bytes_per_s(self) -> float: ...

    @property
    def cores(self) -> int: ...

    @property
    def clock_hz(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What programs reach of a chip's peaks.

    The defaults but the last one are fitted to a random half of 145 programs that were measured on an H100 SXM, by
    `python -m benchmarks.device_predictions --fit`, which tells the errors on the other half. A fit to half of a later,
    quieter measurement of 175 programs gives 0.885, 0.937, 20.5 and 0.78; the other half is predicted alike (products,
    models), better (pointwise 7%, not 8%) and worse (copies 7%, not 5%). Other GPUs are taken to reach the same shares.

    Attributes:
        memory_share: Of the memory's bandwidth: the rest goes to refreshing it and to turning from reads to writes.
        product_share: Of the peak of products, by tiles without borders: under full load a GPU lowers its clock.
        border: By how many rows and columns a tile costs more than it has. A core waits at times for what it reads,
            which grows with a tile's borders, and not with its area.
        overlap: The share of the shorter one of moving and multiplying that is hidden behind the longer one: a tile is
            written only when its last product is done.
        launch_s: Seconds from the end of a kernel to the start of the next one, on a GPU: what the quiet ones of these
            programs that are several equal kernels leave for each, beside its bytes (1.9 to 2.6 us).
    """

    memory_share: float = 0.84
    product_share: float = 0.97
    border: float = 20.5
    overlap: float = 0.68
    launch_s: float = 2e-6


@dataclass(frozen=True, slots=True)
class Work:
    """What an instruction takes.

    Attributes:
        seconds: On the chip.
        kind: `product`, `fusion`, `copy`, ...: `product` wherever matrices are multiplied, else the opcode; empty for
            what takes no time.
        moved_bytes: Read from memory and written to it.
        flops: Of its products.
    """

    seconds: float = 0.0
    kind: str = ""
    moved_bytes: int = 0
    flops: float = 0.0


def computing_work(
    module: ScheduledModule,
    computation: Computation,
    instruction: Instruction,
    chip: Chip,
    efficiency: Efficiency | None = None,
) -> Work:
    """What an instruction of `computation` takes that neither communicates nor is a loop, a branch or a call.

    Raises:
        RateError: the chip has no rate for what is multiplied.
        HloTextError: the compiler's configuration of the instruction cannot be read.
    """
    if instruction.opcode in _FREE or instruction.custom_call_target in _FREE_CALLS:
        return Work()
    efficiency = efficiency or Efficiency()
    products = tuple(products_of(module, computation, instruction))
    moved = moved_bytes(module, computation, instruction)
    kind = "product" if products else instruction.opcode
    flops = sum(each.flops for each in products)
    cycles = instruction.estimated_cycles
    if cycles is not None and chip.kind == "tpu":
        return Work(cycles / chip.clock_hz, kind, moved[MAIN_MEMORY], flops)
    bandwidth = chip.memory_bytes_per_s * efficiency.memory_share
    memory_s = moved[MAIN_MEMORY] / bandwidth + (sum(moved.values()) - moved[MAIN_MEMORY]) / (bandwidth * _ON_CHIP)
    products_s = sum(product_s(each, chip, efficiency) for each in products)
    # A TPU's instructions are one program: none is launched.
    launch_s = efficiency.launch_s if chip.kind == "gpu" else 0.0
    exposed_s = min(memory_s, products_s) * (1 - efficiency.overlap)
    return Work(max(memory_s, products_s) + exposed_s + launch_s, kind, moved[MAIN_MEMORY], flops)


def copying_s(instruction: Instruction, chip: Chip, efficiency: Efficiency | None = None) -> float:
    """The seconds of a copy beside the computation: the `-start` of a copy, or of a slice that is copied."""
    efficiency = efficiency or Efficiency()
    # Its result has both ends, and numbers by which it is waited for; of a slice one end is smaller.
    ends = [shape.size_bytes for shape in instruction.shapes if shape.dims]
    return min(ends, default=0) / (chip.memory_bytes_per_s * efficiency.memory_share)


def product_s(product: Product, chip: Chip, efficiency: Efficiency) -> float:
    """The seconds of a product whose operands come fast enough, by the best of the tile sizes."""
    peak = _peak(chip, product.element_type)
    if chip.kind != "gpu":
        return product.flops / (peak * efficiency.product_share)
    core_flops_per_s = peak * efficiency.product_share / chip.cores
    best = float("inf")
    for rows, columns in _TILES:
        tiles = product.batch * ceil(product.rows / rows) * ceil(product.columns / columns)
        area = (rows + efficiency.border) * (columns + efficiency.border)
        for split in _SPLITS:
            if split > 1 and product.contracted < 4 * _STEP * split:
                break
            depth = ceil(product.contracted / split / _STEP) * _STEP
            tile_s = 2.0 * area * depth / core_flops_per_s
            # The parts are added up by one more kernel.
            added_s = (split > 1) * efficiency.launch_s
            best = min(best, ceil(tiles * split / chip.cores) * tile_s + added_s)
    return best


def _peak(chip: Chip, element_type: str) -> float:
    instead = _RATES_INSTEAD.get(element_type, _NARROW)
    for name in (element_type, *instead):
        if name in chip.flops_per_s:
            return chip.flops_per_s[name]
    raise RateError(chip.kind, element_type, tuple(chip.flops_per_s))
